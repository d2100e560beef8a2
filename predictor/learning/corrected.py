"""Applies corrections to the numbers of a prediction."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from models.features import Floats
from predictor.learning.ends import LEVEL_90
from predictor.learning.kernel import KernelParameters
from predictor.learning.link import Link, from_scale, to_scale
from predictor.types import MemberPrediction, Quantity


class Influence(NamedTuple):
    """An observed set and its share of an answer's correction, from -1 to 1; negative if it speeds the job
    up."""

    job: str
    partners: tuple[str, ...]
    device: str
    observations: int
    weight: float


class Basis(NamedTuple):
    """The basis of an answer: how many observations, and the most influential ones."""

    observations: int
    heaviest: tuple[Influence, ...]


class Shift(NamedTuple):
    """The process's correction for a member beside its partners.

    Attributes:
        excess: correction of the log excess of the slowdown.
        variance, prior_variance: of it, with and without observations.
        solo: correction of the log solo step time.
        solo_shrink: by how much its interval narrows.
        basis: the observations behind it.
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


class Corrector:
    """Applies shifts to members' answers.

    Args:
        parameters: parameters of the process.
    """

    def __init__(self, parameters: KernelParameters) -> None:
        self._link, self._noise = Link(parameters.knee), parameters.noise
        self._repeat = LEVEL_90 * math.sqrt(parameters.noise)

    def __call__(self, member: MemberPrediction, shift: Shift, least: float = 1.0) -> MemberPrediction:
        """The member's answer with the shift applied and a slowdown of at least `least`. Intervals narrow
        like the process's own, and are at least as wide."""
        solo, solo_apart = self._solo(member.solo_step_time_s, shift)
        slow = self._slowdown(member.slowdown, shift)
        if slow.value < least:  # keep the intervals' width
            slow = Quantity(least, slow.lower * least / slow.value, slow.upper * least / slow.value)
        # The step time's interval covers those of the slowdown and of the solo step time.
        step = solo.value * slow.value
        apart = math.exp(math.hypot(math.log(slow.upper / slow.value), solo_apart))
        return MemberPrediction(
            member.job,
            solo,
            Quantity(step, step / apart, step * apart),
            slow,
            Quantity(1 / slow.value, 1 / slow.upper, 1 / slow.lower),
            member.memory_bytes,
            at_step_time(member.utilization_ratio, member.slowdown.value / slow.value),
            member.in_domain,
        )

    @staticmethod
    def _solo(solo: Quantity, shift: Shift) -> tuple[Quantity, float]:
        """The solo step time, and the log distance of its upper end."""
        half = math.log(solo.upper / solo.value)
        if shift.solo == 0.0 and shift.solo_shrink == 1.0:
            return solo, half
        half *= shift.solo_shrink
        value, apart = solo.value * math.exp(shift.solo), math.exp(half)
        return Quantity(value, value / apart, value * apart), half

    def _slowdown(self, slowdown: Quantity, shift: Shift) -> Quantity:
        link, noise = self._link, self._noise
        here = math.log(max(slowdown.value, 1.0))
        place = link.to_scale(here)
        if shift.excess != 0.0:
            place = max(place + shift.excess, link.least)
            here = link.from_scale(place)
        noise *= link.slope(here) ** 2
        narrower = math.sqrt((shift.variance + noise) / (shift.prior_variance + noise))
        value, apart = math.exp(here), (slowdown.upper / slowdown.value) ** narrower
        lower, upper = max(value / apart, 1.0), value * apart
        if shift.prior_variance > 0.0:
            # The process's own interval if it is wider, because the predictor's assumes campaigns like those
            # it was fitted to.
            ends = LEVEL_90 * math.sqrt(max(shift.variance, 1e-9))
            quick, long = here - link.from_scale(place - ends), here - link.from_scale(place + ends)
            lower = min(max(value * math.exp(-math.hypot(quick, self._repeat)), 1.0), lower)
            upper = max(value * math.exp(math.hypot(long, self._repeat)), upper)
        return Quantity(value, lower, upper)


def at_step_time(busy: Quantity, factor: float) -> Quantity:
    """Utilisation when a step takes 1 / `factor` of the time with the same work on the device."""
    return Quantity(
        min(busy.value * factor, 1.0), min(busy.lower * factor, 1.0), min(busy.upper * factor, 1.0)
    )
