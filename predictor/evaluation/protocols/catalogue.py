"""The named protocols: which measurements, what is held out, what is predicted, what is known beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from datasets.bundle import Bundle
from datasets.sources import SOURCES
from datasets.splits import Fold, make_split, select_sets
from profiling.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    import pandas as pd

    from predictor.evaluation.protocols.registry import Contender


@dataclass(frozen=True, slots=True)
class Protocol:
    """One way of scoring predictors.

    Attributes:
        name: as in `cotenant benchmark run NAME`.
        about: one line for people.
        campaigns: whose rows; empty: all that there are.
        split: a kind of `datasets.splits`, or `zero-shot`: learn from what a shipped model may be trained on, score
            `campaigns`.
        target: what is predicted.
        with_solo: whether the solo runs of the members are known.
    """

    name: str
    about: str
    campaigns: tuple[str, ...]
    split: str
    target: str = "throughput_ratio"
    with_solo: bool = True

    def admits(self, contender: Contender) -> bool:
        """Whether `contender` takes part."""
        return (
            self.target in contender.targets
            and (contender.protocols is None or self.name in contender.protocols)
            and (self.with_solo or not contender.uses_solo)
            and (self.split == "zero-shot" or not contender.pretrained)
        )


PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            "lucid-random",
            "sets at random: flatters, for comparison with the literature",
            ("lucid",),
            "random",
        ),
        Protocol("lucid-by-pair", "pairs of models never seen together", ("lucid",), "by-pair"),
        Protocol("lucid-by-model", "a model never seen, solo profiles known", ("lucid",), "by-model"),
        Protocol(
            "lucid-by-model-graph-only",
            "a model never seen, nothing known of it but its graph",
            ("lucid",),
            "by-model",
            with_solo=False,
        ),
        Protocol(
            "lucid-memory-by-model",
            "device memory of a set with a model never seen",
            ("lucid",),
            "by-model",
            target="set_memory_bytes",
        ),
        Protocol(
            "lucid-utilization-by-model",
            "device utilisation of a set with a model never seen",
            ("lucid",),
            "by-model",
            target="set_utilization_ratio",
        ),
        Protocol("lucid-zero-shot", "no row of this campaign learned from", ("lucid",), "zero-shot"),
        Protocol("gavel2020-random", "sets at random: flatters, for comparison", ("gavel-2020",), "random"),
        Protocol("gavel2020-by-pair", "pairs of models never seen together", ("gavel-2020",), "by-pair"),
        Protocol(
            "gavel2020-by-model", "a model never seen, its step time known", ("gavel-2020",), "by-model"
        ),
        Protocol("gavel2019-random", "sets at random: flatters, for comparison", ("gavel-2019",), "random"),
        Protocol(
            "gavel2019-by-model", "a model never seen, its step time known", ("gavel-2019",), "by-model"
        ),
        Protocol("gavel-by-device", "a GPU type never seen (2020)", ("gavel-2020",), "by-device"),
        Protocol("all-by-model", "a model never seen, over every campaign there is", (), "by-model"),
        Protocol(
            "solo-by-model",
            "step time alone of a model never seen, nothing known but its graph",
            (),
            "by-model",
            target="solo_step_time_s",
            with_solo=False,
        ),
    )
}


def get_protocol(name: str) -> Protocol:
    """The protocol called `name`.

    Raises:
        UnknownNameError: there is none.
    """
    if name not in PROTOCOLS:
        raise UnknownNameError("no such protocol", expected="one of " + ", ".join(PROTOCOLS), got=name)
    return PROTOCOLS[name]


@dataclass(frozen=True)
class Trial:
    """A protocol with its measurements: folds, and the two bundles of each.

    Attributes:
        frame: rows that folds are made of: co-location members, or solo runs with a set id each.
        solo: solo runs.
    """

    protocol: Protocol
    frame: pd.DataFrame
    solo: pd.DataFrame
    folds: tuple[Fold, ...]

    def bundles(self, fold: Fold) -> tuple[Bundle, Bundle]:
        """(to learn from, to score with its targets in place).

        Solo runs of an architecture that is only in the test side are in the test bundle only: a model that was never
        seen was never seen alone either.
        """
        train, test = (select_sets(self.frame, ids) for ids in (fold.train_set_ids, fold.test_set_ids))
        if self.protocol.target == "solo_step_time_s":
            empty = self.frame.iloc[:0]
            return (Bundle(self.protocol.target, empty, train), Bundle(self.protocol.target, empty, test))
        unseen = set(test["architecture"]) - set(train["architecture"])
        sides = (
            Bundle(self.protocol.target, train, self.solo[~self.solo["architecture"].isin(unseen)]),
            Bundle(self.protocol.target, test, self.solo),
        )
        return sides if self.protocol.with_solo else (sides[0].without_solo(), sides[1].without_solo())


def make_trial(protocol: Protocol, tables: dict[str, pd.DataFrame], seed: int = 0) -> Trial:
    """Choose the rows of `protocol` from `tables` and split them.

    Raises:
        InputError: the tables lack what it needs; with the command that brings it.
    """
    solo = tables["solo"]
    if protocol.target == "solo_step_time_s":
        frame = solo[solo["step_time_s"].notna() & (solo["gpus"] == 1)].reset_index(drop=True)
        frame = frame.assign(set_id=frame["campaign"] + "/" + frame["device"] + "/" + frame["workload"])
    else:
        frame = tables["colocation"]
    wanted = set(protocol.campaigns) or set(frame["campaign"])
    missing = wanted - set(frame["campaign"])
    if missing or not len(frame):
        source = next((s.name for s in SOURCES.values() if set(s.campaigns) & missing), "NAME")
        raise InputError(
            f"protocol {protocol.name} needs rows that are not in the data",
            expected="campaign " + ", ".join(sorted(missing or {"of any kind"})),
            got=", ".join(sorted(set(frame["campaign"]))) or "no rows",
            hint=f"cotenant data import {source} SRC -o DIR",
        )
    chosen = frame["campaign"].isin(wanted)
    if protocol.target not in ("throughput_ratio", "solo_step_time_s"):
        chosen &= frame[protocol.target].notna()
    if protocol.split == "zero-shot":
        shippable = frame["source"].map(lambda name: name not in SOURCES or SOURCES[name].may_ship)
        learned, scored = frame[shippable & ~chosen], frame[chosen]
        ids = [tuple(sorted(set(side["set_id"]))) for side in (learned, scored)]
        folds = [Fold("zero-shot", ids[0], ids[1])]
        chosen |= shippable
    else:
        folds = make_split(frame[chosen], protocol.split, seed)
    frame = frame[chosen].reset_index(drop=True)
    solo = solo[solo["campaign"].isin(set(frame["campaign"]))].reset_index(drop=True)
    return Trial(protocol, frame, solo, tuple(folds))
