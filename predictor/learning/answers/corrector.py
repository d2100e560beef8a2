"""Applies corrections to the numbers of a prediction."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from models.features import Floats
from predictor.gaussian_process.kernel import KernelParameters
from predictor.gaussian_process.link import Link, from_scale, to_scale
from predictor.types import LEVEL_90, MemberPrediction, Quantity


class Shift(NamedTuple):
    """The process's correction for a member beside its partners.

    Attributes:
        excess: correction of the log excess of the slowdown.
        variance, prior_variance: of it, with and without observations, as if no training pairs were known; 0 for a
            member without partners, which is not corrected.
        solo, solo_variance, solo_prior_variance: the same of the log solo step time; 0 if it is not corrected.
        covariance: of the two. Slowdowns absorb what is wrong with a solo step time, so what is left of their errors
            is opposed.
    """

    excess: float
    variance: float
    prior_variance: float
    solo: float
    solo_variance: float
    solo_prior_variance: float
    covariance: float


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

    def __call__(
        self,
        member: MemberPrediction,
        shift: Shift,
        least: float = 1.0,
        most: float = math.inf,
        least_solo_s: float = 0.0,
    ) -> MemberPrediction:
        """The member's answer with the shift applied and a slowdown from `least` to `most`.

        The lower end of a predicted solo step time is at least `least_solo_s`.

        Intervals narrow like the process's own, which are used where they are wider, because the predictor's
        assume campaigns like those that it was fitted to. None is wider than without observations, unless the
        correction itself is.
        """
        solo, solo_apart = self._solo(member.solo_step_time_s, shift, least_solo_s)
        slow = self._slowdown(member.slowdown, shift)
        if not least <= slow.value <= most:  # keep the intervals' width
            factor = max(min(slow.value, most), least) / slow.value
            slow = Quantity(slow.value * factor, max(slow.lower * factor, 1.0), slow.upper * factor)
        step = solo.value * slow.value
        apart = math.exp(self._step_apart(member, shift, slow, solo_apart))
        return MemberPrediction(
            member.job,
            solo,
            Quantity.around(step, apart).at_least(solo.lower),
            slow,
            slow.inverse(),
            member.memory_bytes,
            at_step_time(
                member.utilization_ratio,
                member.solo_step_time_s.value * member.slowdown.value / step,
                1 / slow.value,
            ),
            member.in_domain,
        )

    def at_slowdown(self, shift: Shift, member: MemberPrediction, slowdown: float) -> Shift:
        """The shift that makes the member's slowdown this one."""
        return self.reweighed(shift._replace(excess=0.0), member, slowdown)

    def reweighed(self, shift: Shift, member: MemberPrediction, slowdown: float) -> Shift:
        """The shift of the member's answer that is right for another predicted `slowdown`."""
        before, now = (self._link.to_scale(math.log(max(s, 1.0))) for s in (member.slowdown.value, slowdown))
        return shift._replace(excess=shift.excess + now - before)

    def _solo(self, solo: Quantity, shift: Shift, least_s: float) -> tuple[Quantity, float]:
        """The solo step time, and the log distance of its ends."""
        half = math.log(solo.upper / solo.value)
        if not shift.solo_prior_variance:
            return solo, half
        half = self._narrowed(half, shift.solo_variance, shift.solo_prior_variance, shift.solo)
        value = solo.value * math.exp(shift.solo)
        return Quantity.around(value, math.exp(half)).at_least(least_s), half

    def _step_apart(self, member: MemberPrediction, shift: Shift, slow: Quantity, solo_apart: float) -> float:
        """Log distance of the ends of the step time, the product of solo step time and slowdown.

        Step times observed in sets tell the product better than either.
        """
        if not (shift.solo_prior_variance and shift.prior_variance):
            return math.hypot(math.log(slow.upper / slow.value), solo_apart)
        # Errors of the excess as errors of the log slowdown.
        per_excess = 1.0 / self._link.slope(math.log(slow.value))
        prior = shift.solo_prior_variance + per_excess**2 * shift.prior_variance
        left = shift.solo_variance + per_excess * (per_excess * shift.variance + 2.0 * shift.covariance)
        was_solo, was_slow = member.solo_step_time_s, member.slowdown
        half = math.hypot(
            math.log(was_slow.upper / was_slow.value), math.log(was_solo.upper / was_solo.value)
        )
        moved = shift.solo + math.log(slow.value / was_slow.value)
        return self._narrowed(half, max(left, 0.0), prior, moved)

    def _narrowed(self, half: float, variance: float, prior_variance: float, moved: float) -> float:
        """Half the width of an interval of a log step time, given that without observations.

        Args:
            half: without observations.
            variance, prior_variance: the process's, with and without observations.
            moved: the correction.
        """
        left, before = variance + self._noise, prior_variance + self._noise
        return _within(half, half * math.sqrt(left / before), LEVEL_90 * math.sqrt(left), moved)

    def _slowdown(self, slowdown: Quantity, shift: Shift) -> Quantity:
        if not shift.prior_variance:
            return slowdown
        link = self._link
        before = math.log(max(slowdown.value, 1.0))
        place = max(link.to_scale(before) + shift.excess, link.least)
        here = link.from_scale(place) if shift.excess else before
        noise = self._noise * link.slope(here) ** 2
        half, value = math.log(slowdown.upper / slowdown.value), math.exp(here)
        narrower = half * math.sqrt((shift.variance + noise) / (shift.prior_variance + noise))
        ends = LEVEL_90 * math.sqrt(max(shift.variance, 1e-9))
        quick, slow = (
            math.exp(_within(half, narrower, math.hypot(own, self._repeat), here - before))
            for own in (here - link.from_scale(place - ends), link.from_scale(place + ends) - here)
        )
        return Quantity(value, max(value / quick, 1.0), value * slow)


def _within(half: float, narrower: float, own: float, moved: float) -> float:
    """The larger of `narrower` and the process's `own`, at most `half` (without observations) or the correction."""
    return min(max(narrower, own), max(half, abs(moved)))


def at_step_time(busy: Quantity, factor: float, most: float = 1.0) -> Quantity:
    """Utilisation when a step takes 1 / `factor` of the time with the same work on the device.

    Its error is no share of it, so the interval stays as wide, but for what is below 0 or above 1.

    Args:
        busy: before.
        most: limit of the value.
    """
    value, half = min(busy.value * factor, most), max(busy.value - busy.lower, busy.upper - busy.value)
    return Quantity(value, max(value - half, 0.0), min(value + half, 1.0))
