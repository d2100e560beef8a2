"""Learning from what happened: observed step times correct the next predictions, and become rows of the next training.

For every job on a device (n observations, log ratios of observed to predicted step time with mean m) the factor is

    exp(m * n / (n + SHRINKAGE))

so that one observation moves an answer little and many move it all the way. Where the caller measured the job alone, the
factor corrects its slowdown (which stays at least 1), else its solo step time: what is known worst takes the blame.
Corrections are derived from the observations whenever they are needed, so they always fit the predictor at hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from predictor.examples.observations import Observation
from predictor.types import Prediction, PredictionArrays, Quantity, SetPredictor
from profiling.workload import ColocationSet, Workload

# Observations that count half: n / (n + SHRINKAGE).
SHRINKAGE = 5.0
# A single observation further off than this (a stalled job, a wrong unit) counts as this far off.
FARTHEST = math.log(4.0)

Key = tuple[str, Workload, bool]


def _key(device: str, workload: Workload) -> Key:
    return device, workload.without_solo(), workload.solo.step_time_s is not None


@dataclass
class Corrections:
    """Count and sum of log ratios per job on a device (apart, whether it was measured alone)."""

    sums: dict[Key, tuple[int, float]] = field(default_factory=dict)

    def add(self, device: str, workload: Workload, log_ratio: float) -> None:
        """Take in one observation: log of observed / predicted (uncorrected) step time."""
        count, total = self.sums.get(_key(device, workload), (0, 0.0))
        clipped = max(-FARTHEST, min(FARTHEST, log_ratio))
        self.sums[_key(device, workload)] = count + 1, total + clipped

    def log_factor(self, device: str, workload: Workload) -> float:
        """Log of the factor by which the job's predicted step time is corrected; 0 without observations."""
        count, total = self.sums.get(_key(device, workload), (0, 0.0))
        return total / (count + SHRINKAGE)

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {"device": device, "job": str(workload), "solo_measured": measured, "count": count,
             "factor": math.exp(total / (count + SHRINKAGE))}
            for (device, workload, measured), (count, total) in self.sums.items()
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Drift:
    """How far predictions were off: median |log observed / predicted|, 0.1 being about 10 %.

    Attributes:
        count: observations.
        before: of the predictor as it is.
        after: with each observation corrected by those before it, so nothing is judged by itself.
    """

    count: int
    before: float
    after: float


def learn(predictor: SetPredictor, observations: Sequence[Observation]) -> tuple[Corrections, Drift]:
    """Corrections for `predictor` from observations in the order in which they were made, and how far it was off."""
    if not observations:
        return Corrections(), Drift(0, 0.0, 0.0)
    arrays = predictor.predict_arrays([o.colocation_set for o in observations])
    predicted = arrays.step_time_s[np.arange(len(observations)), [o.member for o in observations]]
    return learn_ratios(
        (o.colocation_set.device, o.workload, math.log(o.step_time_s / p))
        for o, p in zip(observations, predicted, strict=True)
    )


def learn_ratios(ratios: Iterable[tuple[str, Workload, float]]) -> tuple[Corrections, Drift]:
    """As `learn`, from (device, workload, log of observed / predicted step time) that somebody has kept already."""
    corrections, before, after = Corrections(), [], []
    for device, workload, log_ratio in ratios:
        before.append(abs(log_ratio))
        after.append(abs(log_ratio - corrections.log_factor(device, workload)))
        corrections.add(device, workload, log_ratio)
    if not before:
        return corrections, Drift(0, 0.0, 0.0)
    return corrections, Drift(len(before), float(np.median(before)), float(np.median(after)))


def corrected(
    prediction: Prediction, corrections: Corrections, workloads: Sequence[Workload] | None = None
) -> Prediction:
    """The prediction with its members' step times corrected; one that nobody observed stays as it is.

    Args:
        prediction: as the predictor gave it.
        corrections: factors by job and device.
        workloads: the members, where the caller has them; else they are read from their SPECs.
    """
    if not corrections.sums:
        return prediction
    members, reasons = [], list(prediction.reasons)
    for member, workload in zip(
        prediction.members, workloads or [Workload.parse(m.job) for m in prediction.members], strict=True
    ):
        factor = math.exp(corrections.log_factor(prediction.device, workload))
        if factor == 1.0:
            members.append(member)
            continue
        if workload.solo.step_time_s is None:
            solo, slow = _times(member.solo_step_time_s, factor), member.slowdown
            step = _times(member.step_time_s, factor)
        else:
            solo = member.solo_step_time_s
            slow = _at_least_one(_times(member.slowdown, factor))
            step = _times(member.step_time_s, slow.value / member.slowdown.value)
        members.append(
            replace(
                member,
                solo_step_time_s=solo,
                step_time_s=step,
                slowdown=slow,
                throughput_ratio=Quantity(1 / slow.value, 1 / slow.upper, 1 / slow.lower),
            )
        )
        reasons.append(
            f"{workload.model}: step time x {step.value / member.step_time_s.value:.2f} from observations"
        )
    return replace(prediction, members=tuple(members), reasons=tuple(reasons))


def corrected_arrays(
    arrays: PredictionArrays, sets: Sequence[ColocationSet], corrections: Corrections
) -> PredictionArrays:
    """As `corrected`, for policies."""
    if not corrections.sums:
        return arrays
    logs, measured = np.zeros(arrays.mask.shape), np.zeros(arrays.mask.shape, dtype=bool)
    known: dict[tuple[str, Workload], float] = {}
    for k, one in enumerate(sets):
        for i, workload in enumerate(one.workloads):
            key = one.device, workload
            if key not in known:
                known[key] = corrections.log_factor(one.device, workload)
            logs[k, i] = known[key]
            measured[k, i] = workload.solo.step_time_s is not None
    factor = np.exp(logs)
    slowdown = np.where(measured, np.maximum(arrays.slowdown * factor, 1.0), arrays.slowdown)
    solo = np.where(measured, arrays.solo_step_time_s, arrays.solo_step_time_s * factor)
    # The device's work for a job is the same; a slower step spreads it over more time.
    busy = arrays.utilization_ratio * arrays.slowdown / slowdown
    return replace(
        arrays, solo_step_time_s=solo, slowdown=slowdown, step_time_s=solo * slowdown, utilization_ratio=busy
    )


class CorrectedPredictor:
    """Another predictor with corrections applied: what policies ask."""

    def __init__(self, predictor: SetPredictor, corrections: Corrections) -> None:
        self.predictor, self.corrections = predictor, corrections

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        """As `SetPredictor`."""
        return corrected_arrays(self.predictor.predict_arrays(sets), sets, self.corrections)


def _times(quantity: Quantity, factor: float) -> Quantity:
    return Quantity(quantity.value * factor, quantity.lower * factor, quantity.upper * factor)


def _at_least_one(quantity: Quantity) -> Quantity:
    return Quantity(max(1.0, quantity.value), max(1.0, quantity.lower), max(1.0, quantity.upper))
