"""A prediction's numbers with a correction worked in."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from models.features import Floats
from predictor.learning.ends import LEVEL_90
from predictor.learning.kernel import KernelParameters
from predictor.learning.link import from_scale, to_scale
from predictor.types import MemberPrediction, Quantity

_LARGEST = 20.0


@dataclass(frozen=True, slots=True)
class Influence:
    """An observed set and how much of an answer's correction it makes, from -1 to 1; negative: it speeds the job up."""

    job: str
    partners: tuple[str, ...]
    device: str
    count: int
    weight: float


@dataclass(frozen=True, slots=True)
class Basis:
    """What an answer stands on: observations that count in it, and those that weigh most."""

    count: int
    heaviest: tuple[Influence, ...]


@dataclass(frozen=True, slots=True)
class Shift:
    """What the process says of a member beside its partners.

    Attributes:
        excess: correction of the log excess of the slowdown.
        variance, prior_variance: of it, with and without observations.
        solo: correction of the log solo step time.
        solo_shrink: by how much its interval narrows.
        basis: what it stands on.
    """

    excess: float
    variance: float
    prior_variance: float
    solo: float
    solo_shrink: float
    basis: Basis


def shifted(slowdown: Floats, correction: Floats, knee: float) -> Floats:
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


class _Scale:
    """`predictor.learning.link` for one number at a time: in plain floats a tenth of what arrays of one cost."""

    def __init__(self, knee: float) -> None:
        self.knee = knee
        self.border = math.log(math.expm1(knee))
        self.steepest = math.exp(knee) / math.expm1(knee)

    def of(self, log_slowdown: float) -> float:
        if log_slowdown >= self.knee:
            return math.log(math.expm1(log_slowdown))
        return self.border + (log_slowdown - self.knee) * self.steepest

    def back(self, value: float) -> float:
        if value > self.border:
            return math.log1p(math.exp(min(value, _LARGEST)))
        return self.knee + (value - self.border) / self.steepest

    def slope(self, log_slowdown: float) -> float:
        above = max(log_slowdown, self.knee)
        return math.exp(above) / math.expm1(above)


def corrected(member: MemberPrediction, shift: Shift, parameters: KernelParameters) -> MemberPrediction:
    """A member's answer with the shift in it. Intervals narrow as the process's own do, and are at least as wide as those."""
    scale, before = _Scale(parameters.knee), member.slowdown
    log_slowdown = math.log(max(before.value, 1.0))
    place = scale.of(log_slowdown) + shift.excess
    if shift.excess:
        log_slowdown = max(scale.back(place), 0.0)
        place = scale.of(log_slowdown)
    slowdown = math.exp(log_slowdown)
    noise = parameters.noise * scale.slope(log_slowdown) ** 2
    shrink = math.sqrt((shift.variance + noise) / (shift.prior_variance + noise))
    slow = _around(slowdown, before, shrink, least=1.0)
    if shift.prior_variance > 0:
        # The process's own interval where it is wider: the predictor's knows of campaigns like those that it was fitted to.
        apart, repeat = LEVEL_90 * math.sqrt(max(shift.variance, 1e-9)), LEVEL_90**2 * parameters.noise
        quick = log_slowdown - math.sqrt((log_slowdown - scale.back(place - apart)) ** 2 + repeat)
        long = log_slowdown + math.sqrt((scale.back(place + apart) - log_slowdown) ** 2 + repeat)
        slow = Quantity(
            slow.value, max(1.0, min(slow.lower, math.exp(quick))), max(slow.upper, math.exp(long))
        )
    solo = member.solo_step_time_s
    if shift.solo or shift.solo_shrink != 1.0:
        solo = _around(solo.value * math.exp(shift.solo), solo, shift.solo_shrink)
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
