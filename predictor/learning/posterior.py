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
from predictor.learning.kernel import KernelParameters
from predictor.learning.known_members import KnownMembers
from predictor.learning.link import from_scale, slope, to_scale
from predictor.learning.members import MemberScale, default_scale
from predictor.learning.process import Evidence, Process
from predictor.learning.rows import Rows, variance
from predictor.types import MemberPrediction, Prediction, PredictionArrays, Quantity, SetPredictor
from profiling.errors import InputError
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
    """

    parameters: KernelParameters = field(default_factory=KernelParameters)
    most_rows: int = 512
    most_observed: int = 20_000
    repeats: int = 16

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
    """An observed set and what it adds to the log step time of an answer."""

    job: str
    partners: tuple[str, ...]
    device: str
    count: int
    log_step_time: float


@dataclass(frozen=True, slots=True)
class Basis:
    """What an answer stands on: observations that count in it, and those that weigh most."""

    count: int
    heaviest: tuple[Influence, ...]


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
            UnknownNameError: a model or a device is not known; nothing was taken in.
        """
        new: dict[_Key, list[float]] = {}
        for observation in observations:
            key = _key(observation)
            if key[3] or key[2].solo.step_time_s is None:
                new.setdefault(key, []).append(math.log(observation.step_time_s))
        if not new:
            return
        self._meet([key for key in new if key not in self._priors])
        seen = dict(self._seen)
        for key, values in new.items():
            seen[key] = (*seen.get(key, ()), *values)
        self._seen, self._state = seen, None
        self.revision += 1

    def extended(self, observations: Iterable[Observation]) -> Posterior:
        """Another posterior that has seen these, too; this one stays as it is."""
        other = Posterior.__new__(Posterior)
        other.__dict__.update(self.__dict__)
        other._priors = dict(self._priors)
        other.observe(observations)
        other._ready()
        return other

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
        unknown = np.array([key[2].solo.step_time_s is None for key in keys], dtype=float)
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

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        """As `SetPredictor`: slowdowns and predicted solo step times corrected; memory and what fits are the predictor's."""
        arrays = self.predictor.predict_arrays(sets)
        if not self._seen or not len(sets):
            return arrays
        return self._corrected(arrays, self._numbers(sets, arrays.solo_step_time_s))

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
            apart = np.where(self._unmeasured(members), corrections.solo(members), 0.0)
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

    def _unmeasured(self, members: Any) -> np.ndarray:
        return self._known.solo_predicted[: len(members)]

    def predict(self, colocation_set: ColocationSet) -> Prediction:
        """One set, with intervals and reasons."""
        return self.predict_many([colocation_set])[0]

    def predict_many(self, sets: Sequence[ColocationSet]) -> list[Prediction]:
        """Several sets, with intervals and reasons; the predictor must give these, too.

        Raises:
            UnknownNameError: a model or a device is not known.
        """
        predictor: Any = self.predictor
        return self.correct(predictor.predict_many(sets), sets)

    def correct(self, predictions: Sequence[Prediction], sets: Sequence[ColocationSet]) -> list[Prediction]:
        """Predictions of the predictor itself with what was observed worked in; intervals narrow by as much as the process's own."""
        if not self._seen or not len(sets):
            return list(predictions)
        process, _, _ = self._ready()
        p, members = self.config.parameters, self._known
        width = max(len(s.workloads) for s in sets)
        solo_s = np.ones((len(sets), width))
        for row, prediction in enumerate(predictions):
            solo_s[row, : len(prediction.members)] = [m.solo_step_time_s.value for m in prediction.members]
        numbers = self._numbers(sets, solo_s)
        at, place = np.nonzero(numbers >= 0)
        together = (numbers >= 0).sum(1)[at] > 1
        own = numbers[at, place]
        partners = np.array(
            [np.delete(numbers[s], m) for s, m in zip(at, place, strict=True)], dtype=np.int64
        ).reshape(len(at), -1)
        if not partners.shape[1]:
            partners = np.full((len(at), 1), -1, dtype=np.int64)
        beside = Rows(own, partners, np.zeros(len(own)))
        alone = Rows(own, np.full((len(own), 1), -1, dtype=np.int64), np.ones(len(own)))
        shift, spread = process.answer(members.members, beside)
        apart, solo_spread = process.answer(members.members, alone)
        apart = np.where(members.solo_predicted[own], apart, 0.0)
        before, solo_before = (variance(p, members.members, rows) for rows in (beside, alone))
        slowdown = np.array(
            [
                predictions[s].members[m].slowdown.value
                for s, m in zip(at.tolist(), place.tolist(), strict=True)
            ]
        )
        steep = slope(np.log(slowdown), p.knee)
        noise = p.noise * steep**2
        shrink = np.sqrt((spread + noise) / (before + noise))
        solo_shrink = np.sqrt((solo_spread + p.noise) / (solo_before + p.noise))
        corrected = _shifted(slowdown, np.where(together, shift, 0.0), p.knee)
        found: dict[int, list[MemberPrediction]] = {}
        for k, (s, m) in enumerate(zip(at.tolist(), place.tolist(), strict=True)):
            narrowed = float(solo_shrink[k]) if members.solo_predicted[own[k]] else 1.0
            found.setdefault(s, []).append(
                _member(
                    predictions[s].members[m], float(corrected[k]), float(math.exp(apart[k])),
                    float(shrink[k]) if together[k] else 1.0, narrowed,
                )
            )  # fmt: skip
        return [
            replace(
                prediction,
                members=tuple(found[s]),
                reasons=(*prediction.reasons, *self._reasons(prediction, found[s], sets[s])),
            )
            for s, prediction in enumerate(predictions)
        ]

    def _reasons(
        self, prediction: Prediction, members: Sequence[MemberPrediction], one: ColocationSet
    ) -> list[str]:
        reasons = []
        for number, (before, after) in enumerate(zip(prediction.members, members, strict=True)):
            factor = after.step_time_s.value / before.step_time_s.value
            if abs(math.log(factor)) < 0.005:
                continue
            basis = self.basis(one, number)
            beside = basis.heaviest[0] if basis.heaviest else None
            most = ""
            if beside is not None:
                others = " and ".join(beside.partners)
                most = f", most of all {beside.job} {'beside ' + others if others else 'alone'} on {beside.device}"
            reasons.append(
                f"{one.workloads[number].model}: step time x {factor:.2f} from {basis.count} observations{most}"
            )
        return reasons

    def basis(self, one: ColocationSet, member: int, most: int = 3) -> Basis:
        """What the answer for a member of a set stands on; an observation counts if it moves the answer by a hundredth of what the
        heaviest does."""
        process, _, keys = self._ready()
        if not keys:
            return Basis(0, ())
        arrays = self.predictor.predict_arrays([one])
        numbers = self._numbers([one], arrays.solo_step_time_s)[0]
        others = np.delete(numbers, member)
        members = self._known
        beside = Rows(
            numbers[[member]],
            others[None] if len(others) else np.full((1, 1), -1, dtype=np.int64),
            np.array([float(members.solo_predicted[numbers[member]])]),
        )
        steep = float(slope(np.log(arrays.slowdown[:1, member]), self.config.parameters.knee)[0])
        added = process.influence(members.members, beside) / (steep if len(others) else 1.0)
        order = np.argsort(-np.abs(added), kind="stable")
        heavy = [int(k) for k in order if abs(added[k]) > 0.01 * abs(added[order[0]])]
        return Basis(
            sum(len(self._seen[keys[k]]) for k in heavy),
            tuple(
                Influence(
                    str(keys[k][2]), tuple(str(w) for w in keys[k][3]), keys[k][0],
                    len(self._seen[keys[k]]), float(added[k]),
                )
                for k in heavy[:most]
            ),
        )  # fmt: skip


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


def _member(
    member: MemberPrediction, slowdown: float, solo_factor: float, shrink: float, solo_shrink: float
) -> MemberPrediction:
    slow = _around(slowdown, member.slowdown, shrink, least=1.0)
    solo = _around(member.solo_step_time_s.value * solo_factor, member.solo_step_time_s, solo_shrink)
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
