"""The weight of a predictor's networks in their mean with its process, learned from observations.

Both halves of a prediction err, differently from cluster to cluster. Before anything was observed they count alike; the
weight is then one more unknown of the Gaussian process, uniform between 0 and 1, whose effect on an answer is the
difference of the two.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from models.features import Floats
from predictor.gaussian_process.set_process import NETWORK_SHARE

# Standard deviation of a uniform distribution from 0 to 1.
DEVIATION = 1.0 / math.sqrt(12.0)
# Weights are multiples of this, so that few are in use and what was computed for one is used again.
_GRID = 1.0 / 32.0


def at_share(log_slowdown: Floats, towards: Floats, network_share: float) -> Floats:
    """Log slowdowns predicted with some weight of the networks.

    Args:
        log_slowdown: predicted with `NETWORK_SHARE`.
        towards: change of these if the networks answered alone.
        network_share: the weight.
    """
    return log_slowdown + (network_share - NETWORK_SHARE) / (1.0 - NETWORK_SHARE) * towards


def learned_share(error: Floats, noise: Floats, towards: Floats, covariance: Floats) -> float:
    """The most probable weight, given errors of the predictor.

    Args:
        error: [N] observed minus expected; noise: [N] variance of the observations.
        towards: [N] change of the expected value per unit of the weight.
        covariance: [N, N] of the predictor's true errors if the weight were known.
    """
    if not towards.any():
        return NETWORK_SHARE
    factor = cho_factor(covariance + np.diag(noise), lower=True)
    information = towards @ cho_solve(factor, np.stack([error, towards], 1))
    weight = NETWORK_SHARE + information[0] / (information[1] + DEVIATION**-2)
    return float(np.clip(_GRID * round(weight / _GRID), 0.0, 1.0))
