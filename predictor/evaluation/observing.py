"""`cotenant evaluate --observe`: accuracy on new architectures, after observing some of their sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from models.features import Floats
from predictor.evaluation.answered import answered_log_ratio
from predictor.evaluation.evaluation import check_rows, half_widths
from predictor.evaluation.metrics import score
from predictor.evaluation.protocols.few_shot.orders import PROBES, chosen_orders, random_orders
from predictor.evaluation.protocols.few_shot.processes import CorrectedLearner, log_slowdowns
from predictor.evaluation.scored_rows import RowsCallback, member_rows, no_rows
from predictor.examples.cross_fit import sets_with
from predictor.examples.examples import Examples, Integers, examples_of
from predictor.fitted.fitted import Manifest
from predictor.fitted.learned_sets import learned_rows
from predictor.gaussian_process.expectation import Expectation
from predictor.gaussian_process.known_members import KnownMembers, NamedMembers
from predictor.gaussian_process.leave_one_out import LeftOut, calibrated
from predictor.gaussian_process.members import default_scale
from predictor.gaussian_process.rows import Rows, partners_of
from predictor.learning.evidence.config import PosteriorConfig
from predictor.learning.evidence.prior import Prior
from predictor.learning.evidence.training_pairs import TrainingPairs
from profiling.collections.networks import network_of, networks_of, one_name
from profiling.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from predictor.gaussian_process.set_process import SetProcess
    from predictor.predictor import Predictor


class ModelLearner(CorrectedLearner):
    """A fitted model as prior mean of the process, over the rows of some measured sets.

    Args:
        predictor: the model; it predicts all sets once.
        examples: T rows.
    """

    def __init__(self, predictor: Predictor, examples: Examples) -> None:
        model = predictor.fitted_.model
        keys = [
            (w, d, f"{m}/{c}")
            for w, d, m, c in zip(
                examples.workloads, examples.devices, examples.mode, examples.campaign, strict=True
            )
        ]
        prior, start = _prior(model.process, dict.fromkeys((d, named) for _, d, named in keys))
        known = KnownMembers(prior.parameters, default_scale(), model.featurizer, start)
        encodings = model.encode(zip(examples.workloads, examples.devices, strict=True))
        steps = [
            w.solo.step_time_s or encodings[w.without_solo(), d].step_time_s
            for w, d in zip(examples.workloads, examples.devices, strict=True)
        ]
        own = np.array(known.numbers(keys, steps), dtype=np.int64)
        rows = Rows(own, partners_of(own, examples.set_index))
        ratio, slow = answered_log_ratio(predictor, examples)
        of_networks, _ = answered_log_ratio(predictor, examples, 1.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_slowdown = -np.log(examples.ratio)
        super().__init__(prior, known.members, rows, -ratio, -of_networks, log_slowdown)
        self.before = -ratio
        self.half = half_widths(predictor, examples, slow)

    def intervals(self, seen: Integers) -> tuple[Floats, Floats, Floats]:
        """[T] log ratio and the ends of its 90 % interval, as in the posterior's answers.

        The model's interval narrows as the process's does. The process's is used if it is wider, up to the
        model's without observations or the correction itself.
        """
        expected = self.expectation(seen)
        noise = self.expected_noise(expected)
        after, before = self.variances(seen, expected)
        after = calibrated(after, before, self._variance_ratio(self.start_of(seen), seen))
        narrower = self.half * np.sqrt((after + noise) / (before + noise))
        middle, quick, slow = log_slowdowns(expected.mean + self.centre, after, self.parameters)
        most = np.maximum(self.half, np.abs(middle - self.before))
        below, above = (
            np.minimum(np.maximum(apart, narrower), most) for apart in (middle - quick, slow - middle)
        )
        return -middle, -(middle + above), -(middle - below)

    def _variance_ratio(self, start: Expectation, seen: Integers) -> float:
        gram = start.covariance[np.ix_(seen, seen)] + np.diag(self.noise[seen])
        inverse = np.linalg.inv(gram)
        weight = inverse @ (self.observed[seen] - start.mean[seen])
        left_out = LeftOut.of(np.diag(inverse), weight, self.noise[seen])
        return left_out.variance_ratio(np.ones(len(seen), dtype=bool))


def _prior(
    process: SetProcess | None, settings: Iterable[tuple[str, str]]
) -> tuple[Prior, NamedMembers | None]:
    """The prior of the model's errors, and the members that it numbers.

    Args:
        process: of the model's training sets, which names no campaigns.
        settings: device and `mode/campaign` of measured sets.
    """
    p = PosteriorConfig().parameters
    if process is None:
        return Prior.nothing(p), None
    seen = process.seen_on(default_scale(), p)
    known = {name: number for number, name in enumerate(seen.settings)}
    places = [(s, known.get((s[0], s[1].partition("/")[0]))) for s in settings]
    inside = [(name, number) for name, number in places if number is not None]
    training = TrainingPairs.of(process, seen.members, p)
    training, start = training.repeated(seen, [number for _, number in inside])
    return Prior(p, training, start.members), replace(start, settings=tuple(name for name, _ in inside))


MOST_TOGETHER = 5_000
"""Rows per covariance matrix, whose memory grows with their square."""

# Architecture; then measured ratio, prediction without and with observations, and the ends of the latter's
# interval.
_Part = tuple[str, tuple[Floats, ...]]


def evaluate_observing(
    predictor: Predictor,
    colocation: pd.DataFrame,
    solo: pd.DataFrame,
    observe: int,
    probes: str = "random",
    seed: int = 0,
    rows: RowsCallback = no_rows,
) -> dict[str, Any]:
    """Score a model on each architecture new to it, after observing `observe` of its sets on each device.

    Observations of one architecture also inform the others, as in a cluster that runs them all. If the model
    has learned from all architectures, those on devices new to it count as new; `new` states which rule was
    used.

    Args:
        predictor: used as is, without refitting.
        colocation, solo: measured sets, and solo runs of their members. Sets that the model learned from are
            ignored.
        observe: sets observed per device and architecture.
        probes: how sets are chosen: `random`, or `chosen` by the probe rule.
        seed: seed of the random choice.
        rows: called with the scored rows of each architecture (`new`); `before` is the prediction without observations.

    Returns:
        The object of `cotenant evaluate --observe --json`: `metrics` of the remaining rows, `before` (the
        same rows without observations), and both by architecture; `left_out`, the number of sets that the
        model learned from.

    Raises:
        InputError: no architecture is new to the model, or new on a device, or nothing is left to score; or
            see `learned_rows`.
    """
    if observe < 0:
        raise InputError("observe is out of range", expected="at least 0", got=observe)
    if probes not in PROBES:
        raise InputError("unknown method to choose sets", expected="one of " + ", ".join(PROBES), got=probes)
    predictor._table()  # raises where nothing was fitted
    check_rows(colocation)
    seen = learned_rows(predictor.fitted_, colocation)
    new = new_to(predictor.fitted_.manifest, examples_of(colocation, solo))
    parts: list[_Part] = []
    observed_sets = 0
    for block in _blocks(new.examples):
        some, count = _observed_block(predictor, block, new.architectures, observe, probes, seed, rows)
        parts += some
        observed_sets += count
    if not parts:
        raise InputError(
            "no sets left to score",
            expected=f"sets with {', '.join(new.architectures)} beyond those observed",
            got=f"{observed_sets}, all observed",
            hint="lower --observe, or add sets",
        )
    names = sorted({name for name, _ in parts})
    return {
        "model_version": predictor.version,
        "observe": observe,
        "probes": probes,
        "seed": seed,
        "left_out": int(colocation[seen].set_id.nunique()),
        "new": new.what,
        "observed_sets": observed_sets,
        "architectures": names,
        **_scored(parts),
        "by_model": {name: _scored([part for part in parts if part[0] == name]) for name in names},
    }


class New(NamedTuple):
    """What a model has not learned from.

    Attributes:
        examples: the sets that the model has not learned from, or those of them on new devices.
        architectures: sorted names.
        what: `architecture`, or `architecture on its device`.
    """

    examples: Examples
    architectures: list[str]
    what: str


def new_to(manifest: Manifest, examples: Examples) -> New:
    """Architectures that a model has not learned from; if it has from all, those on devices new to it.

    Args:
        manifest: of the model.
        examples: measured sets, of which those that it learned from are ignored.

    Raises:
        InputError: there are none.
    """
    size = np.bincount(examples.set_index, minlength=len(examples.set_ids))
    keep = examples.resident & (size > 1) & ~np.isin(examples.set_ids, manifest.set_ids)
    examples = examples.subset([s for s, k in zip(examples.set_ids, keep, strict=True) if k])
    learned = networks_of(manifest.architectures)
    first = one_name(examples.architectures)
    new = sorted({one for one in first.values() if network_of(one) not in learned})
    if new:
        return New(examples, new, "architecture")
    given = [", ".join(sorted(set(names))) for names in (examples.architectures, examples.devices)]
    # An architecture known from CPUs, or from GPUs of other types, is new on this one.
    elsewhere = ~np.isin(np.array(examples.devices, dtype=str), manifest.coverage.devices)
    examples = examples.subset([examples.set_ids[s] for s in np.unique(examples.set_index[elsewhere])])
    new = sorted({first[name] for name in examples.architectures})
    if not new:
        raise InputError(
            "the model was trained on every architecture in the data on these devices",
            expected="co-location rows of another architecture or device",
            got=" on ".join(given) if all(given) else "only sets that it was trained on",
        )
    return New(examples, new, "architecture on its device")


def _scored(parts: Sequence[_Part]) -> dict[str, Any]:
    measured, first, ratio, lower, upper = (
        np.concatenate([values[column] for _, values in parts]) for column in range(5)
    )
    return {"metrics": score(measured, ratio, lower, upper), "before": score(measured, first)}


def _blocks(examples: Examples) -> list[Examples]:
    """All rows together, or split by campaign, or by campaign and device, if they are too many for one
    covariance."""
    if len(examples.workloads) <= MOST_TOGETHER:
        return [examples]
    size = np.bincount(examples.set_index)
    places = [(examples.campaign[row], examples.devices[row]) for row in examples.first.tolist()]
    rows: Counter[str] = Counter()
    for (campaign, _), members in zip(places, size.tolist(), strict=True):
        rows[campaign] += members
    blocks: dict[tuple[str, str], list[str]] = {}
    for name, (campaign, device) in zip(examples.set_ids, places, strict=True):
        apart = rows[campaign] > MOST_TOGETHER
        blocks.setdefault((campaign, device if apart else ""), []).append(name)
    return [examples.subset(sets) for sets in blocks.values()]


def _observed_block(
    predictor: Predictor,
    examples: Examples,
    new: Sequence[str],
    observe: int,
    probes: str,
    seed: int,
    report: RowsCallback,
) -> tuple[list[_Part], int]:
    """The remaining rows of each new architecture in some examples, with predictions, and the number of
    observed sets."""
    learner = ModelLearner(predictor, examples)
    rows_of: dict[str, Integers] = {}
    orders = [np.zeros(0, np.int64)]
    for number, architecture in enumerate(new):
        sets = sorted(sets_with(examples, [architecture]))
        rows = np.flatnonzero(np.isin(np.array(examples.set_ids)[examples.set_index], sets))
        test = examples.subset(sets)
        if not test.scored.any():
            continue
        rows_of[architecture] = rows
        rounds = (
            random_orders(test, observe, seed * len(new) + number)
            if probes == "random"
            else chosen_orders(test, observe, ModelLearner(predictor, test))
        )
        orders += [rows[one] for one in rounds]
    seen = np.unique(np.concatenate(orders))
    observed = np.isin(examples.set_index, examples.set_index[seen])
    first, answers = learner.intervals(np.zeros(0, np.int64))[0], learner.intervals(seen)
    parts: list[_Part] = []
    for architecture, rows in rows_of.items():
        left = rows[examples.scored[rows] & ~observed[rows]]
        if len(left):
            values = [np.exp(value[left]) for value in (first, *answers)]
            parts.append((architecture, (examples.ratio[left], *values)))
            columns = dict(zip(("before", "predicted", "lower", "upper"), values, strict=True))
            report(member_rows(examples, left, columns).assign(new=architecture))
    return parts, len(np.unique(examples.set_index[seen]))
