"""90 % intervals of log slowdowns from mean and variance on the scale of the process."""

from __future__ import annotations

import numpy as np

from models.features import Floats
from predictor.learning.kernel import KernelParameters
from predictor.learning.link import from_scale

LEVEL_90 = 1.645


def log_slowdowns(
    mean: Floats, variance: Floats, parameters: KernelParameters
) -> tuple[Floats, Floats, Floats]:
    """(middle, lower end, upper end) for a new measurement, its noise included.

    Args:
        mean, variance: [N] on the scale, prior mean included.
        parameters: knee and noise.
    """
    knee, noise = parameters.knee, LEVEL_90**2 * parameters.noise
    apart = LEVEL_90 * np.sqrt(np.maximum(variance, 1e-9))
    middle, quick, slow = (from_scale(mean + shift, knee) for shift in (0.0, -apart, apart))
    return (
        middle,
        middle - np.sqrt((middle - quick) ** 2 + noise),
        middle + np.sqrt((slow - middle) ** 2 + noise),
    )
