"""A prediction's numbers with a correction worked in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.features import Floats
from predictor.learning.ends import LEVEL_90
from predictor.learning.kernel import KernelParameters
from predictor.learning.link import from_scale, slope, to_scale
from predictor.types import MemberPrediction, Quantity


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


def corrected(
    members: Sequence[MemberPrediction], shifts: Sequence[Shift], parameters: KernelParameters
) -> list[MemberPrediction]:
    """Members' answers with their shifts in them. Intervals narrow as the process's own do, and are at least as wide as those."""
    if not members:
        return []
    knee = parameters.knee
    value, lower, upper, solo, solo_lower, solo_upper = np.array(
        [
            (a.value, a.lower, a.upper, b.value, b.lower, b.upper)
            for a, b in ((m.slowdown, m.solo_step_time_s) for m in members)
        ]
    ).T
    excess, variance, prior_variance, solo_shift, solo_shrink = np.array(
        [(s.excess, s.variance, s.prior_variance, s.solo, s.solo_shrink) for s in shifts]
    ).T
    log_slowdown = np.log(np.maximum(value, 1.0))
    moved = np.maximum(from_scale(to_scale(log_slowdown, knee) + excess, knee), 0.0)
    log_slowdown = np.where(excess != 0, moved, log_slowdown)
    noise = parameters.noise * slope(log_slowdown, knee) ** 2
    narrower = np.sqrt((variance + noise) / (prior_variance + noise))
    slowdown, half = np.exp(log_slowdown), np.log(upper / value) * narrower
    lower, upper = np.maximum(slowdown * np.exp(-half), 1.0), slowdown * np.exp(half)
    # The process's own interval where it is wider: the predictor's knows of campaigns like those that it was fitted to.
    place, repeat = to_scale(log_slowdown, knee), LEVEL_90**2 * parameters.noise
    apart = LEVEL_90 * np.sqrt(np.maximum(variance, 1e-9))
    quick, long = (
        np.hypot(log_slowdown - from_scale(end, knee), math.sqrt(repeat))
        for end in (place - apart, place + apart)
    )
    known = prior_variance > 0
    lower = np.where(known, np.clip(slowdown * np.exp(-quick), 1.0, lower), lower)
    upper = np.where(known, np.maximum(slowdown * np.exp(long), upper), upper)
    corrects_solo = (solo_shift != 0) | (solo_shrink != 1.0)
    half, factor = np.log(solo_upper / solo) * solo_shrink, np.exp(solo_shift)
    solo_lower = np.where(corrects_solo, solo * factor * np.exp(-half), solo_lower)
    solo_upper = np.where(corrects_solo, solo * factor * np.exp(half), solo_upper)
    solo = np.where(corrects_solo, solo * factor, solo)
    # The step time's interval holds that of the slowdown and that of the solo step time.
    half, step = np.hypot(np.log(upper / slowdown), np.log(solo_upper / solo)), solo * slowdown
    numbers = (
        (solo, solo_lower, solo_upper),
        (step, step * np.exp(-half), step * np.exp(half)),
        (slowdown, lower, upper),
        (1 / slowdown, 1 / upper, 1 / lower),
    )
    solos, steps, slowdowns, ratios = (
        list(map(Quantity, *(ends.tolist() for ends in quantity))) for quantity in numbers
    )
    return [
        MemberPrediction(m.job, solo, step, slow, ratio, m.memory_bytes, m.utilization_ratio, m.in_domain)
        for m, solo, step, slow, ratio in zip(members, solos, steps, slowdowns, ratios, strict=True)
    ]
