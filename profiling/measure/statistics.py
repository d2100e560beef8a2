"""Robust statistics of repeated windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

# Standard deviation / MAD of a normal distribution.
MAD_SCALE = 1.4826


@dataclass(frozen=True, slots=True)
class Summary:
    """Median and median absolute deviation of repeats, with a verdict.

    Attributes:
        median, mad: in the unit of the values.
        spread_ratio: 1.4826 mad / median; 0 for a single value.
        verdict: `stable`, `noisy` (spread above the tolerance), `drifting` (medians of the first and second half of
            the repeats differ by more than twice the tolerance) or `single` (one repeat, so no spread is known).
    """

    median: float
    mad: float
    spread_ratio: float
    verdict: str


def median_absolute_deviation(values: Sequence[float]) -> float:
    middle = median(values)
    return median(abs(v - middle) for v in values)


def summarize(values: Sequence[float], tolerance: float) -> Summary:
    """Summarise the values of all repeats.

    Args:
        values: one per repeat.
        tolerance: largest spread ratio that counts as stable.

    Raises:
        ValueError: no values.
    """
    middle, mad = median(values), median_absolute_deviation(values)
    spread = MAD_SCALE * mad / middle if middle else 0.0
    if len(values) == 1:
        return Summary(middle, mad, spread, "single")
    half = len(values) // 2
    drift = abs(median(values[-half:]) - median(values[:half])) / middle if middle else 0.0
    if spread > tolerance:
        return Summary(middle, mad, spread, "noisy")
    return Summary(middle, mad, spread, "drifting" if drift > 2 * tolerance else "stable")


@dataclass(frozen=True, slots=True)
class Window:
    """Whole steps of one member within a window.

    Attributes:
        steps: number of steps.
        step_time_s: mean, the inverse of throughput. A median would mislead, because under time slicing a short step
            either runs at full speed or waits for whole slices.
        step_median_s, step_mad_s: median and MAD of single steps.
    """

    steps: int
    step_time_s: float
    step_median_s: float
    step_mad_s: float


def common_window(boundaries: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Start and end (s) of the time in which every member ran; `boundaries` are each member's start and step ends."""
    return max(b[0] for b in boundaries), min(b[-1] for b in boundaries)


def within(boundaries: Sequence[float], start: float, end: float) -> Window | None:
    """The whole steps between `start` and `end` (s); None if there are none."""
    # Rounding must not exclude the boundary that defines the window.
    inside = [b for b in boundaries if start - 1e-9 <= b <= end + 1e-9]
    if len(inside) < 2:
        return None
    durations = [b - a for a, b in pairwise(inside)]
    steps = len(durations)
    return Window(
        steps,
        math.fsum(durations) / steps,
        median(durations),
        median_absolute_deviation(durations),
    )
