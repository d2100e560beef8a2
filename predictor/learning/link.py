"""The scale on which slowdowns are learned: the log of the excess, log(slowdown - 1).

Contention multiplies the excess, so that what was learned of a job holds beside light partners and heavy ones. Below a knee, where
the excess is smaller than what a repeated measurement differs by, the scale goes on linearly in the log slowdown.
"""

from __future__ import annotations

import numpy as np

from models.features import Floats

# Largest log slowdown that an answer may have; keeps the exponential finite.
_LARGEST = 20.0


def to_scale(log_slowdown: Floats, knee: float) -> Floats:
    """Log excess of log slowdowns of any shape, continued linearly below `knee`; log slowdowns below 0 are allowed."""
    above = np.maximum(log_slowdown, knee)
    return np.asarray(np.log(np.expm1(above)) + (log_slowdown - above) * slope(above, knee))


def from_scale(value: Floats, knee: float) -> Floats:
    """Log slowdown; the inverse of `to_scale`."""
    border = np.log(np.expm1(knee))
    above = np.log1p(np.exp(np.minimum(value, _LARGEST)))
    return np.where(value > border, above, knee + (value - border) / slope(np.array(knee), knee))


def slope(log_slowdown: Floats, knee: float) -> Floats:
    """Derivative of `to_scale`: what an error of the log slowdown becomes on the scale."""
    above = np.maximum(log_slowdown, knee)
    return np.asarray(np.exp(above) / np.expm1(above))
