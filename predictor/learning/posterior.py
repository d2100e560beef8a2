"""A fitted predictor and what was observed since: the same answers, corrected, without fitting anything anew.

The predictor is the prior mean of a Gaussian process (`predictor.learning.kernel`) over the log excess of a slowdown; where a job's solo step
time was predicted, the process corrects that, too. A posterior is a function of its observations alone: neither their order nor how they
were divided over calls matters.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from models.features import Floats
from predictor.examples.observations import Observation
from predictor.learning.corrections import Corrections
from predictor.learning.ends import log_slowdowns
from predictor.learning.kernel import KernelParameters, Members
from predictor.learning.known_members import KnownMembers
from predictor.learning.link import from_scale, slope, to_scale
from predictor.learning.members import MemberScale, default_scale
from predictor.learning.process import Evidence, Process
from predictor.learning.rows import Rows, variance
from predictor.types import MemberPrediction, Prediction, PredictionArrays, Quantity, SetPredictor
from profiling.errors import CotenantError, InputError
from profiling.workload import ColocationSet, Workload

if TYPE_CHECKING:
    from predictor.examples.examples import Integers
    from predictor.examples.featurizer import Featurizer


@dataclass(frozen=True, slots=True)
class PosteriorConfig:
    """How observations are used.

    Attributes:
        parameters: of the kernel.
        most_rows: observed (set, member) pairs that are used exactly; with more, so many stand in for all.
        most_observed: observed (set, member) pairs that are used at all; of more, a fixed sample.
        repeats: observations of the same member of the same set beyond which further ones make an answer no surer.
        learn_solo: whether predicted solo step times are corrected, too; else all of an error is put down to sharing.
    """

    parameters: KernelParameters = field(default_factory=KernelParameters)
    most_rows: int = 512
    most_observed: int = 20_000
    repeats: int = 16
    learn_solo: bool = True

    def __post_init__(self) -> None:
        for name in ("most_rows", "most_observed", "repeats"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is out of range", expected="at least 1", got=getattr(self, name))


# A member beside others: device, sharing mode, workload, its partners in canonical order.
_Key = tuple[str, str, Workload, tuple[Workload, ...]]


def _key(observation: Observation) -> _Key:
    one, member = observation.colocation_set, observation.member
    others = (*one.workloads[:member], *one.workloads[member + 1 :])
    return one.device, one.sharing, observation.workload, tuple(sorted(others, key=repr))


@dataclass(frozen=True, slots=True)
class _Prior:
    """What the predictor says of an observed row: members' numbers, log solo step time, log slowdown, rank."""

    numbers: tuple[int, ...]
    log_solo_s: float
    log_slowdown: float
    rank: int


@dataclass(frozen=True, slots=True)
class Influence:
    """An observed set and how much of an answer's correction it makes, from -1 to 1; negative: it speeds the job up."""

    job: str
    partners: tuple[str, ...]
    device: str
    count: int
    weight: float


@dataclass(frozen=True, slots=True)
class Drift:
    """How far predictions were off: median |log observed / predicted|, 0.1 being about 10 %.

    Attributes:
        count: observations.
        before: of the predictor as it is.
        after: with what was observed before, so nothing is judged by itself.
    """

    count: int
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Basis:
    """What an answer stands on: observations that count in it, and those that weigh most."""

    count: int
    heaviest: tuple[Influence, ...]


@dataclass(frozen=True, slots=True)
class _Shift:
    """What the process says of a member beside its partners: correction of the log excess, its variance with and without observations;
    correction of the log solo step time, and by how much its interval narrows."""

    excess: float
    variance: float
    prior_variance: float
    solo: float
    solo_shrink: float
    basis: Basis


class Posterior:
    """A `SetPredictor` that has seen step times.

    Args:
        predictor: the prior mean. Answers are its own while nothing was observed.
        config: how observations are used.
        scale: of member features; that of the shipped parameters by default.
        featurizer: reads graphs; by default the predictor's own where it has one, else jobs are told apart by name only.

    Attributes:
        revision: grows whenever an answer may have changed.
    """

    def __init__(
        self,
        predictor: SetPredictor,
        config: PosteriorConfig | None = None,
        scale: MemberScale | None = None,
        featurizer: Featurizer | None = None,
    ) -> None:
        self.predictor, self.config = predictor, config or PosteriorConfig()
        if featurizer is None and hasattr(predictor, "fitted_"):
            featurizer = predictor.fitted_.model.featurizer
        self._known = KnownMembers(self.config.parameters, scale or default_scale(), featurizer)
        self._seen: dict[_Key, tuple[float, ...]] = {}
        self._priors: dict[_Key, _Prior] = {}
        self._state: tuple[Process, Corrections, list[_Key]] | None = None
        self._of_row: Integers = np.zeros(0, np.int64)
        self.revision = 0

    def __len__(self) -> int:
        """Observations that were taken in."""
        return sum(len(values) for values in self._seen.values())

    @property
    def version(self) -> str:
        return str(getattr(self.predictor, "version", ""))

    def observe(self, observations: Iterable[Observation]) -> None:
        """Take in observations; those of jobs alone whose solo step time is known say nothing new.

        Raises:
            UnknownNameError: unknown model or device; nothing was taken in.
        """
        new: dict[_Key, list[float]] = {}
        for observation in observations:
            key = _key(observation)
            if key[3] or self._solo_counts(key[2]):
                new.setdefault(key, []).append(math.log(observation.step_time_s))
        if not new:
            return
        self._meet([key for key in new if key not in self._priors])
        seen = dict(self._seen)
        for key, values in new.items():
            seen[key] = (*seen.get(key, ()), *values)
        self._seen, self._state = seen, None
        self.revision += 1

    def over(self, predictor: SetPredictor) -> Posterior:
        """The same observations over another predictor, such as a newer version of the first.

        Observations that it cannot be asked about are left out.
        """
        other = Posterior(predictor, self.config, self._known.scale)
        other.take(
            Observation(ColocationSet(device, (own, *others), sharing), 0, math.exp(value))
            for (device, sharing, own, others), values in self._seen.items()
            for value in values
        )
        return other

    def take(self, observations: Iterable[Observation]) -> int:
        """As `observe`, but observations that the predictor cannot be asked about are left out; says how many."""
        kept = list(observations)
        try:
            self.observe(kept)
            return 0
        except CotenantError:
            left_out = 0
        by_set: dict[ColocationSet, list[Observation]] = {}
        for one in kept:
            by_set.setdefault(one.colocation_set, []).append(one)
        for several in by_set.values():
            try:
                self.observe(several)
            except CotenantError:
                left_out += len(several)
        return left_out

    def extended(self, observations: Iterable[Observation]) -> Posterior:
        """Another posterior that has seen these, too (as by `take`); this one stays as it is."""
        other = Posterior.__new__(Posterior)
        other.__dict__.update(self.__dict__)
        other._priors = dict(self._priors)
        other.take(observations)
        other._ready()
        return other

    def _solo_counts(self, workload: Workload) -> bool:
        return self.config.learn_solo and workload.solo.step_time_s is None

    def _meet(self, keys: Sequence[_Key]) -> None:
        """Ask the predictor about rows that are observed for the first time."""
        if not keys:
            return
        sets = [ColocationSet(device, (own, *others), sharing) for device, sharing, own, others in keys]
        arrays = self.predictor.predict_arrays(sets)
        numbers = self._numbers(sets, arrays.solo_step_time_s)
        for row, key in enumerate(keys):
            size = 1 + len(key[3])
            self._priors[key] = _Prior(
                tuple(numbers[row, :size].tolist()),
                math.log(arrays.solo_step_time_s[row, 0]),
                math.log(max(1.0, arrays.slowdown[row, 0])),
                _rank(key),
            )

    def _numbers(self, sets: Sequence[ColocationSet], solo_step_time_s: Floats) -> Integers:
        """[S, M] numbers of members, -1 where there is none."""
        keys = [(w, s.device, s.sharing) for s in sets for w in s.workloads]
        size = np.array([len(s.workloads) for s in sets])
        mask = np.arange(solo_step_time_s.shape[1]) < size[:, None]
        result = np.full(mask.shape, -1, dtype=np.int64)
        result[mask] = self._known.numbers(keys, solo_step_time_s[mask].tolist())
        return result

    def _ready(self) -> tuple[Process, Corrections, list[_Key]]:
        """The process given all observations; worked out when it is first needed."""
        if self._state is None:
            keys = sorted(self._seen, key=lambda key: self._priors[key].rank)[: self.config.most_observed]
            process = Process(self.config.parameters, self._evidence(keys), most_rows=self.config.most_rows)
            self._state = process, Corrections(process), keys
        return self._state

    def _evidence(self, keys: list[_Key]) -> Evidence:
        p = self.config.parameters
        priors = [self._priors[key] for key in keys]
        width = max([1, *(len(prior.numbers) - 1 for prior in priors)])
        partners = np.full((len(keys), width), -1, dtype=np.int64)
        for row, prior in enumerate(priors):
            partners[row, : len(prior.numbers) - 1] = prior.numbers[1:]
        own = np.array([prior.numbers[0] for prior in priors], dtype=np.int64)
        expected = np.array([prior.log_slowdown for prior in priors])
        step = np.array([float(np.median(self._seen[key])) for key in keys])
        observed = step - np.array([prior.log_solo_s for prior in priors])
        together = (partners >= 0).any(1)
        unknown = np.array([self._solo_counts(key[2]) for key in keys], dtype=float)
        count = np.array([len(self._seen[key]) for key in keys])
        error = observed - expected
        on_scale = to_scale(observed, p.knee) - to_scale(expected, p.knee)
        # What an error of the solo step time would be on the scale: the secant, so that it explains all of the difference or none.
        steep = slope(observed, p.knee)
        secant = np.where(np.abs(error) > 1e-6, on_scale / np.where(error == 0, 1.0, error), steep)
        rows = Rows(own, partners, np.where(together, secant, 1.0) * unknown)
        noise = p.noise / np.minimum(count, self.config.repeats)
        return Evidence(
            self._known.members,
            rows,
            np.where(together, on_scale, error),
            noise * np.where(together, steep**2, 1.0),
            np.zeros(len(keys), dtype=bool),
            np.arange(len(keys)),
        )

    @property
    def process(self) -> Process:
        """The process given everything that was observed."""
        return self._ready()[0]

    @property
    def members(self) -> Members:
        """The members that were met; rows of the process name them by number."""
        return self._known.members

    def rows_of(self, sets: Sequence[ColocationSet]) -> tuple[Rows, Floats]:
        """Rows of the process for all members of some sets of two, set by set, and their corrected log slowdowns."""
        arrays = self.predictor.predict_arrays(sets)
        numbers = self._numbers(sets, arrays.solo_step_time_s)
        own, partners = numbers.ravel(), numbers[:, ::-1].reshape(-1, 1)
        slowdown = self._corrected(arrays, numbers).slowdown if self._seen else arrays.slowdown
        return Rows(own, partners, np.zeros(len(own))), np.log(slowdown.ravel())

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        """As `SetPredictor`: slowdowns and predicted solo step times corrected; memory and what fits are the predictor's."""
        arrays = self.predictor.predict_arrays(sets)
        if not self._seen or not len(sets):
            return arrays
        return self._corrected(arrays, self._numbers(sets, arrays.solo_step_time_s))

    def drift(self, observations: Sequence[Observation]) -> Drift:
        """How far the predictor was off at `observations`, in the order in which they were made, and how far each would have been off with
        those before it taken in."""
        kept = [
            o for o in observations if len(o.colocation_set.workloads) > 1 or self._solo_counts(o.workload)
        ]
        if not kept:
            return Drift(0, 0.0, 0.0)
        sets, members = [o.colocation_set for o in kept], [o.member for o in kept]
        observed = np.log([o.step_time_s for o in kept])
        at = np.arange(len(kept)), members
        before = np.abs(observed - np.log(self.predictor.predict_arrays(sets).step_time_s[at]))
        after = before.copy()
        told = Posterior(self.predictor, self.config, self._known.scale)
        # In steps that grow, so that many observations take no more than some dozens of them.
        start = 0
        while start < len(kept):
            end = min(len(kept), start + max(1, start // 8))
            arrays = told.predict_arrays(sets[start:end])
            part = np.arange(end - start), members[start:end]
            after[start:end] = np.abs(observed[start:end] - np.log(arrays.step_time_s[part]))
            told.observe(kept[start:end])
            start = end
        return Drift(len(kept), float(np.median(before)), float(np.median(after)))

    def to_json(self) -> list[dict[str, Any]]:
        """Observed members of sets with what was observed of them and what is said now."""
        _, _, keys = self._ready()
        if not keys:
            return []
        sets = [ColocationSet(device, (own, *others), sharing) for device, sharing, own, others in keys]
        before, after = self.predictor.predict_arrays(sets), self.predict_arrays(sets)
        return [
            {
                "device": key[0], "sharing": key[1], "job": str(key[2]), "beside": [str(w) for w in key[3]],
                "solo_measured": key[2].solo.step_time_s is not None, "count": len(self._seen[key]),
                "step_time_s": math.exp(float(np.median(self._seen[key]))),
                "factor": float(after.step_time_s[row, 0] / before.step_time_s[row, 0]),
            }
            for row, key in enumerate(keys)
        ]  # fmt: skip

    def rows(self, sets: Sequence[ColocationSet]) -> Integers:
        """[S, M] rows of the predictor's job table, for `predict_rows`."""
        return np.asarray(self._table_of().rows(sets))

    def predict_rows(self, rows: Integers, sharing: str) -> PredictionArrays:
        """As `predict_arrays`, for rows that the caller has kept (the quickest way in)."""
        arrays: PredictionArrays = self._table_of().predict_rows(rows, sharing)
        if not self._seen or not len(rows):
            return arrays
        keys = self._table_of().table_.keys
        if len(self._of_row) < len(keys):
            steps = self._table_of().table_.solo_step_s[len(self._of_row) : len(keys)]
            more = self._known.numbers(keys[len(self._of_row) : len(keys)], steps.tolist())
            self._of_row = np.concatenate([self._of_row, np.array(more, dtype=np.int64)])
        numbers = self._of_row[rows]
        if (rows < 0).any():
            numbers = np.where(rows >= 0, numbers, -1)
        return self._corrected(arrays, numbers)

    def _table_of(self) -> Any:
        if not hasattr(self.predictor, "predict_rows"):
            raise InputError("the predictor keeps no rows", hint="use predict_arrays")
        return self.predictor

    def _corrected(self, arrays: PredictionArrays, numbers: Integers) -> PredictionArrays:
        process, corrections, _ = self._ready()
        members, knee = self._known.members, self.config.parameters.knee
        slowdown = _shifted(arrays.slowdown, corrections.of_sets(members, numbers), knee)
        solo = arrays.solo_step_time_s
        if process.evidence.rows.solo.any():
            apart = np.where(self._known.solo_predicted[: len(members)], corrections.solo(members), 0.0)
            solo = solo * np.where(numbers >= 0, np.exp(apart)[numbers], 1.0)
        # The device's work for a job is the same; a slower step spreads it over more time.
        busy = arrays.utilization_ratio * (arrays.slowdown / slowdown)
        return replace(
            arrays,
            slowdown=slowdown,
            solo_step_time_s=solo,
            step_time_s=solo * slowdown,
            utilization_ratio=busy,
        )

    def predict(self, colocation_set: ColocationSet) -> Prediction:
        """One set, with intervals and reasons."""
        return self.predict_many([colocation_set])[0]

    def predict_many(self, sets: Sequence[ColocationSet]) -> list[Prediction]:
        """Several sets, with intervals and reasons; the predictor must give these, too.

        Raises:
            UnknownNameError: unknown model or device.
        """
        predictor: Any = self.predictor
        return self.correct(predictor.predict_many(sets), sets)

    def correct(self, predictions: Sequence[Prediction], sets: Sequence[ColocationSet]) -> list[Prediction]:
        """Predictions of the predictor itself with what was observed worked in; intervals narrow by as much as the process's own, and are
        at least as wide."""
        if not self._seen or not len(sets):
            return list(predictions)
        solo_s = np.ones((len(sets), max(len(s.workloads) for s in sets)))
        for number, prediction in enumerate(predictions):
            solo_s[number, : len(prediction.members)] = [m.solo_step_time_s.value for m in prediction.members]
        numbers = [[n for n in row if n >= 0] for row in self._numbers(sets, solo_s).tolist()]
        asked = [[(own, *row[:m], *row[m + 1 :]) for m, own in enumerate(row)] for row in numbers]
        shifts = self._shifts([key for row in asked for key in row])
        result = []
        for prediction, row in zip(predictions, asked, strict=True):
            members = tuple(
                _member(member, shifts[key], self.config.parameters)
                for member, key in zip(prediction.members, row, strict=True)
            )
            reasons = (
                self._reason(before, after, shifts[key].basis)
                for before, after, key in zip(prediction.members, members, row, strict=True)
            )
            result.append(
                replace(prediction, members=members, reasons=(*prediction.reasons, *filter(None, reasons)))
            )
        return result

    def _shifts(self, asked: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], _Shift]:
        """What the process says of members beside their partners; kept until something new is observed."""
        process, corrections, keys = self._ready()
        known: dict[tuple[int, ...], _Shift] = corrections.shifts
        new = [key for key in dict.fromkeys(asked) if key not in known]
        if not new:
            return known
        members, p = self._known, self.config.parameters
        width = max(1, max(len(key) for key in new) - 1)
        partners = np.full((len(new), width), -1, dtype=np.int64)
        for row, key in enumerate(new):
            partners[row, : len(key) - 1] = key[1:]
        own = np.array([key[0] for key in new], dtype=np.int64)
        predicted = members.solo_predicted[own]
        beside = Rows(own, partners, np.zeros(len(new)))
        alone = Rows(own, np.full((len(new), 1), -1, dtype=np.int64), np.ones(len(new)))
        shift, spread = process.answer(members.members, beside)
        apart, solo_spread = process.answer(members.members, alone)
        before, solo_before = (variance(p, members.members, rows) for rows in (beside, alone))
        # Both in log step times, the excess as beside a typical slowdown, only to tell what weighs most.
        added = process.influences(members.members, beside)
        added[predicted] += process.influences(members.members, alone)[predicted]
        shrunk = np.sqrt((solo_spread + p.noise) / (solo_before + p.noise))
        for row, key in enumerate(new):
            known[key] = _Shift(
                float(shift[row]), float(spread[row]), float(before[row]),
                float(apart[row]) if predicted[row] else 0.0,
                float(shrunk[row]) if predicted[row] else 1.0,
                self._basis(added[row], keys),
            )  # fmt: skip
        return known

    def _basis(self, added: Floats, keys: Sequence[_Key], most: int = 3) -> Basis:
        size = np.abs(added)
        heavy = np.flatnonzero(size > 0.01 * size.max())
        order = heavy[np.argsort(-size[heavy], kind="stable")][:most].tolist()
        total = float(size.sum()) or 1.0
        return Basis(
            sum(len(self._seen[keys[k]]) for k in heavy.tolist()),
            tuple(
                Influence(
                    str(keys[k][2]), tuple(str(w) for w in keys[k][3]), keys[k][0],
                    len(self._seen[keys[k]]), float(added[k]) / total,
                )
                for k in order
            ),
        )  # fmt: skip

    def _reason(self, before: MemberPrediction, after: MemberPrediction, basis: Basis) -> str:
        """What moved a step time; empty where nothing did by half a percent."""
        factor = after.step_time_s.value / before.step_time_s.value
        if abs(math.log(factor)) < 0.005 or not basis.heaviest:
            return ""
        first = basis.heaviest[0]
        where = f"beside {' and '.join(first.partners)}" if first.partners else "alone"
        return (
            f"{Workload.parse(before.job).model}: step time x {factor:.2f} from {basis.count} observations, "
            f"most of all {first.job} {where} on {first.device}"
        )

    def basis(self, one: ColocationSet, member: int) -> Basis:
        """What the answer for a member of a set stands on. An observation counts if it weighs a hundredth of the heaviest."""
        if not self._seen:
            return Basis(0, ())
        arrays = self.predictor.predict_arrays([one])
        row = self._numbers([one], arrays.solo_step_time_s)[0].tolist()
        key = (row[member], *row[:member], *row[member + 1 :])
        return self._shifts([key])[key].basis


def _shifted(slowdown: Floats, correction: Floats, knee: float) -> Floats:
    """Slowdowns moved on the scale; at least 1."""
    excess, border = slowdown - 1.0, math.expm1(knee)
    result = 1.0 + excess * np.exp(correction)
    # Above the knee the scale is the log of the excess, so a correction is a factor.
    curved = (excess < border) | (result < 1.0 + border)
    curved &= correction != 0.0
    if curved.any():
        here = to_scale(np.log(np.maximum(slowdown[curved], 1.0)), knee) + correction[curved]
        result[curved] = np.exp(from_scale(here, knee))
    return np.maximum(result, 1.0)


def _member(member: MemberPrediction, shift: _Shift, parameters: KernelParameters) -> MemberPrediction:
    knee = parameters.knee
    slowdown = float(_shifted(np.array([member.slowdown.value]), np.array([shift.excess]), knee)[0])
    noise = parameters.noise * float(slope(np.array([math.log(slowdown)]), knee)[0]) ** 2
    shrink = math.sqrt((shift.variance + noise) / (shift.prior_variance + noise))
    slow = _around(slowdown, member.slowdown, shrink, least=1.0)
    if shift.prior_variance > 0:
        # The process's own interval where it is wider: the predictor's knows of campaigns like those that it was fitted to.
        place = to_scale(np.array([math.log(slowdown)]), knee)
        _, quick, long = log_slowdowns(place, np.array([shift.variance]), parameters)
        slow = Quantity(
            slow.value, max(1.0, min(slow.lower, math.exp(quick[0]))), max(slow.upper, math.exp(long[0]))
        )
    solo = _around(
        member.solo_step_time_s.value * math.exp(shift.solo), member.solo_step_time_s, shift.solo_shrink
    )
    # The step time's interval holds that of the slowdown and that of the solo step time.
    half = math.hypot(math.log(slow.upper / slow.value), math.log(solo.upper / solo.value))
    step = solo.value * slow.value
    return replace(
        member,
        solo_step_time_s=solo,
        slowdown=slow,
        step_time_s=Quantity(step, step * math.exp(-half), step * math.exp(half)),
        throughput_ratio=Quantity(1 / slow.value, 1 / slow.upper, 1 / slow.lower),
    )


def _around(value: float, before: Quantity, shrink: float, least: float = 0.0) -> Quantity:
    half = math.log(before.upper / before.value) * shrink if before.value > 0 else 0.0
    return Quantity(value, max(least, value * math.exp(-half)), value * math.exp(half))


def _rank(key: _Key) -> int:
    """A number that any process gives to the same row."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")
