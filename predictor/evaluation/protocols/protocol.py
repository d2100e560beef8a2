"""Definition of a protocol: its measurements, what is held out, predicted, and known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from datasets.bundle import Bundle
from datasets.families import family_of
from datasets.sources import SOURCES
from datasets.splits import Fold, make_split, select_sets
from datasets.tables import empty_table
from datasets.targets import get_target
from profiling.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from predictor.evaluation.protocols.registry import Contender

# Source of the bundled measurements: a protocol that names it needs no import.
OWN = "cotenant"
Tables = Mapping[str, "pd.DataFrame"]
# From the rows of a protocol's campaigns, and all tables, to the rows that are used.
Choose = Callable[["pd.DataFrame", Tables], "pd.DataFrame"]
MakeFolds = Callable[["pd.DataFrame", int], list[Fold]]


@dataclass(frozen=True, slots=True)
class Protocol:
    """One way of scoring predictors.

    Attributes:
        name: as in `cotenant benchmark run NAME`.
        about: one-line description.
        campaigns: campaigns or sources of the rows; empty: all.
        split: a kind of `datasets.splits`; or `zero-shot`: train on what a shipped model may be trained on,
            score `campaigns`; or a description of what `folds` does.
        target: what is predicted; the protocol's rows are those of the target's table.
        with_solo: whether the solo runs of set members are known.
        choose: selects rows further and may add columns.
        related: selects rows that a contender may learn from besides those of the protocol, but for units that
            are held out.
        unit: column whose values are never divided between sides.
        folds: makes the folds, if not one of `datasets.splits`.
        known: further tables given to both sides.
        contenders: names of those that take part, in addition to predictors that name this protocol; None:
            all that can.
        by: columns by whose values scores are also broken down.
    """

    name: str
    about: str
    campaigns: tuple[str, ...]
    split: str
    target: str = "throughput_ratio"
    with_solo: bool = True
    choose: Choose | None = None
    related: Choose | None = None
    unit: str = "set_id"
    folds: MakeFolds | None = None
    known: tuple[str, ...] = ()
    contenders: tuple[str, ...] | None = None
    by: tuple[str, ...] = ("architecture", "device", "campaign")

    def admits(self, contender: Contender) -> bool:
        """Whether `contender` takes part."""
        return (
            self.target in contender.targets
            and (
                self.contenders is None or contender.name in self.contenders
                if contender.protocols is None
                else self.name in contender.protocols
            )
            and (self.with_solo or not contender.uses_solo)
            and (self.split == "zero-shot" or not contender.pretrained)
        )


@dataclass(frozen=True)
class Trial:
    """A protocol with its measurements: folds, and the two bundles of each.

    Attributes:
        frame: rows of the target's table, each with a `set_id`; outside the table of sets, each row has one
            of its own.
        solo: solo runs of set members.
        known: the protocol's further tables.
        related: the rows that `Protocol.related` selects.
    """

    protocol: Protocol
    frame: pd.DataFrame
    solo: pd.DataFrame
    folds: tuple[Fold, ...]
    known: Tables = field(default_factory=dict)
    related: pd.DataFrame | None = None

    def bundles(self, fold: Fold) -> tuple[Bundle, Bundle]:
        """(training bundle, test bundle with targets).

        Solo runs of an architecture that is only on the test side are in the test bundle only: if a model is
        new, it has never been measured alone either.
        """
        unit = self.protocol.unit
        train, test = (select_sets(self.frame, ids, unit) for ids in (fold.train_set_ids, fold.test_set_ids))
        unseen = set(test["architecture"]) - set(train["architecture"])
        known_alone = self.solo[~self.solo["architecture"].isin(unseen)]
        related = self.related
        if related is not None:
            related = related[~related[unit].isin(fold.test_set_ids)]
        sides = (
            Bundle(self.protocol.target, train, known_alone, self.known, related),
            Bundle(self.protocol.target, test, self.solo, self.known),
        )
        return sides if self.protocol.with_solo else (sides[0].without_solo(), sides[1].without_solo())


def make_trial(protocol: Protocol, tables: Tables, seed: int = 0) -> Trial:
    """Select the rows of `protocol` from `tables` and split them.

    Raises:
        InputError: the tables lack what it needs; the hint gives the command to import it.
    """
    target = get_target(protocol.target)
    if OWN in protocol.campaigns:
        tables = _with_own(tables)
    frame = tables[target.table] if target.table in tables else empty_table(target.table)
    wanted = set(protocol.campaigns) or set(frame["campaign"])
    missing = wanted - set(frame["campaign"]) - set(frame["source"])
    if missing or not len(frame):
        source = next((s.name for s in SOURCES.values() if {s.name, *s.campaigns} & missing), "NAME")
        raise InputError(
            f"the data lack rows needed by protocol {protocol.name}",
            expected="campaign " + ", ".join(sorted(missing or {"of any kind"})),
            got=", ".join(sorted(set(frame["campaign"]))) or "no rows",
            hint=f"cotenant data import {source} SRC -o DIR",
        )
    chosen = frame["campaign"].isin(wanted) | frame["source"].isin(wanted)
    related = None
    if protocol.related is not None:
        related = _prepared(replace(protocol, choose=protocol.related), frame[chosen], tables)
    if protocol.split == "zero-shot":
        shippable = frame["source"].map(lambda name: name not in SOURCES or SOURCES[name].may_ship)
        frame = _prepared(protocol, frame[shippable | chosen], tables)
        scored = frame["campaign"].isin(wanted)
        ids = [tuple(sorted(set(side["set_id"]))) for side in (frame[~scored], frame[scored])]
        folds = [Fold("zero-shot", ids[0], ids[1])]
    else:
        frame = _prepared(protocol, frame[chosen], tables)
        make = protocol.folds or (
            lambda rows, seed: make_split(rows, protocol.split, seed, unit=protocol.unit)
        )
        folds = make(frame, seed)
    solo = tables.get("solo", empty_table("solo"))
    solo = (
        solo[solo["campaign"].isin(set(frame["campaign"]))] if target.table == "colocation" else solo.iloc[:0]
    )
    known = {name: _known(name, tables, set(frame["source"])) for name in protocol.known}
    return Trial(protocol, frame, solo.reset_index(drop=True), tuple(folds), known, related)


def _with_own(tables: Tables) -> Tables:
    """The tables with the bundled measurements."""
    import pandas as pd

    from datasets import bundled

    own = bundled.load()
    joined = dict(tables)
    for name in own:
        if name in tables and len(own[name]):
            others = tables[name][tables[name]["source"] != OWN]
            joined[name] = pd.concat([others, own[name]], ignore_index=True)
    return joined


def _known(name: str, tables: Tables, sources: set[str]) -> pd.DataFrame:
    """A further table, restricted to the same sources.

    `workloads`, which describes networks, is not restricted.
    """
    table = tables[name] if name in tables else empty_table(name)
    return table if name == "workloads" else table[table["source"].isin(sources)].reset_index(drop=True)


def _prepared(protocol: Protocol, frame: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """The rows that are used, each with an architecture, a family and a set id."""
    target = get_target(protocol.target)
    if target.name == "solo_step_time_s":
        frame = frame[frame["step_time_s"].notna() & (frame["gpus"] == 1)]
    elif target.of_set:
        frame = frame[frame[target.column].notna()]
    if protocol.choose is not None:
        frame = protocol.choose(frame, tables)
    frame = frame.reset_index(drop=True)
    if "architecture" not in frame:
        frame = frame.assign(architecture=frame["kind"])
    if "set_id" not in frame:
        names = frame["campaign"] + "/" + frame["device"] + "/" + frame.get("workload", frame["architecture"])
        repeated = names.groupby(names).cumcount()
        frame = frame.assign(set_id=names.where(repeated == 0, names + " #" + (repeated + 1).astype(str)))
    if "family" not in frame:
        frame = frame.assign(family=frame["architecture"].map(family_of))
    return frame
