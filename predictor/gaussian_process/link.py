"""The scale on which slowdowns are learned: the log of the excess, log(slowdown - 1).

Contention multiplies the excess, so what was learned about a job applies to light and heavy partners alike.
Below a knee, where the excess is smaller than the spread of repeated measurements, the scale is linear in the
log slowdown.
"""

from __future__ import annotations

import math

import numpy as np

from models.features import Floats

# Largest log slowdown in an answer; keeps the exponential finite.
_LARGEST = 20.0


def to_scale(log_slowdown: Floats, knee: float) -> Floats:
    """Log excess of log slowdowns of any shape, continued linearly below `knee` (also below 0)."""
    above = np.maximum(log_slowdown, knee)
    return np.asarray(np.log(np.expm1(above)) + (log_slowdown - above) * slope(above, knee))


def from_scale(value: Floats, knee: float) -> Floats:
    """Log slowdown; the inverse of `to_scale`."""
    border = np.log(np.expm1(knee))
    above = np.log1p(np.exp(np.minimum(value, _LARGEST)))
    return np.where(value > border, above, knee + (value - border) / slope(np.array(knee), knee))


def slope(log_slowdown: Floats, knee: float) -> Floats:
    """Derivative of `to_scale`: converts an error of the log slowdown to the scale."""
    above = np.maximum(log_slowdown, knee)
    return np.asarray(np.exp(above) / np.expm1(above))


class Link:
    """The same for single numbers, for which numpy's overhead exceeds the arithmetic.

    Args:
        knee: as for `to_scale`.

    Attributes:
        least: value for a job without slowdown.
    """

    def __init__(self, knee: float) -> None:
        self.knee = knee
        self._border = math.log(math.expm1(knee))
        self._slope = self.slope(knee)
        self.least = self.to_scale(0.0)

    def to_scale(self, log_slowdown: float) -> float:
        """`to_scale` of a log slowdown."""
        if log_slowdown > self.knee:
            return math.log(math.expm1(log_slowdown))
        return self._border + (log_slowdown - self.knee) * self._slope

    def from_scale(self, value: float) -> float:
        """`from_scale` of a number on the scale."""
        if value > self._border:
            return math.log1p(math.exp(min(value, _LARGEST)))
        return self.knee + (value - self._border) / self._slope

    def slope(self, log_slowdown: float) -> float:
        """`slope` at a log slowdown."""
        above = max(log_slowdown, self.knee)
        return math.exp(above) / math.expm1(above)
