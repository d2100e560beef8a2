"""The kernel's output scale: one factor on its variances of slowdowns, by how large the predictor's errors are.

A predictor that was trained on the observed sets errs far less than on a campaign that it never saw. The factor is
the most probable one of a few (Rasmussen and Williams 2006, section 5.4.1) for the architecture that is predicted
worst: that a cluster's other jobs are predicted well says nothing about a new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import eigh

from models.features import Floats
from predictor.learning.kernel import KernelParameters
from predictor.learning.prior_variance import PriorVariance
from predictor.learning.rows import covariance

if TYPE_CHECKING:
    from predictor.examples.examples import Integers
    from predictor.learning.covariances import Evidence

RATIOS = 2.0 ** np.arange(-5, 3)
# Standard deviation of the log of the factor before anything was observed.
_DEVIATION = 1.0
# Standard deviations beyond which an error says more about its own observation than about others, and the part of such
# errors from which on none counts as small.
_OUTLIER, _MOST_OUTLIERS = 3.0, 0.1
# Rows of the evidence that are used.
_MOST = 64


def output_scale(parameters: KernelParameters, evidence: Evidence) -> float:
    """The factor for some evidence; 1 without any. It does not depend on the order of the rows."""
    rows, beside_one = np.flatnonzero(~evidence.bound), PriorVariance(parameters).beside_one
    architecture = evidence.members.model[evidence.rows.own[rows]]
    # Rows with several partners have a smaller variance, but that of all rows takes long to compute.
    rows = rows[predicted_worst(beside_one, evidence.target[rows], evidence.noise[rows], architecture)]
    rows = rows[np.argsort(evidence.rank[rows])[:_MOST]]
    some = evidence.rows.take(rows)
    gram = covariance(parameters, evidence.members, some, evidence.members, some)
    return most_probable_scale(gram, evidence.target[rows], evidence.noise[rows])


def predicted_worst(
    variance: Floats | float, error: Floats, noise: Floats, architecture: Integers
) -> Integers:
    """Numbers of the rows of the architecture whose plausible errors are largest; all if none is plausible.

    Args:
        variance: [N] prior variance of the errors, or one number for all.
        error, noise: as for `most_probable_scale`.
        architecture: [N] number of the job's architecture.
    """
    squared = error**2 / (variance + noise)
    plausible = squared <= _OUTLIER**2
    if not plausible.any():
        return np.arange(len(error))
    total, count = (np.bincount(architecture[plausible], by) for by in (squared[plausible], None))
    return np.flatnonzero(architecture == np.argmax(total / np.maximum(count, 1)))


def most_probable_scale(covariance: Floats, error: Floats, noise: Floats) -> float:
    """The factor by which to multiply a covariance.

    Implausible errors are left out. If there are many, the factor is at least 1.

    Args:
        covariance: [N, N] prior covariance of the errors.
        error: [N] observed minus predicted.
        noise: [N] variance of the observation.
    """
    kept = np.flatnonzero(np.abs(error) <= _OUTLIER * np.sqrt(np.diag(covariance) + noise))
    if not len(kept):
        return 1.0
    root = 1.0 / np.sqrt(noise[kept])
    explained, vectors = eigh(covariance[np.ix_(kept, kept)] * np.outer(root, root), check_finite=False)
    squared = (vectors.T @ (error[kept] * root)) ** 2
    spread = 1.0 + RATIOS[:, None] * np.maximum(explained, 0.0)
    unlikely = (squared / spread + np.log(spread)).sum(1) + (np.log(RATIOS) / _DEVIATION) ** 2
    ratio = float(RATIOS[unlikely.argmin()])
    return ratio if len(kept) > (1.0 - _MOST_OUTLIERS) * len(error) else max(ratio, 1.0)
