"""Errors of a process on its own evidence, each row predicted from all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from models.features import Floats
from predictor.gaussian_process.job_keys import keys_of

if TYPE_CHECKING:
    from predictor.gaussian_process.covariances import Evidence

_Variance = TypeVar("_Variance", float, Floats)
# Standard deviations beyond which a row contradicts the others.
_UNLIKE_OTHERS = 4.0
# Rows of a job from which on they can contradict each other.
_ENOUGH = 8
# The modelled variance counts like this many rows; bounds of the ratio.
_MODELLED, _LEAST, _MOST = 32, 0.25, 4.0


@dataclass(frozen=True, slots=True)
class LeftOut:
    """N rows of evidence, each predicted from the others (Rasmussen and Williams 2006, section 5.4.2).

    Attributes:
        error: [N] observed minus predicted.
        variance: [N] of the prediction, without the noise of the observation.
        noise: [N] that noise.
    """

    error: Floats
    variance: Floats
    noise: Floats

    @classmethod
    def of(cls, precision: Floats, weight: Floats, noise: Floats) -> LeftOut:
        """From the inverse covariance of the observations: its diagonal, and its product with them."""
        return cls(weight / precision, np.maximum(1.0 / precision - noise, 0.0), noise)

    @property
    def unlike(self) -> np.ndarray:
        """[N] whether the others contradict a row."""
        return np.abs(self.error) > _UNLIKE_OTHERS * np.sqrt(self.variance + self.noise)

    def variance_ratio(self, plain: np.ndarray) -> float:
        """Actual over modelled variance: the mean squared standardised error (Birge 1932).

        It stays near 1 for few rows. A row counts at most as one that the others just do not contradict.

        Args:
            plain: [N] the rows to use.
        """
        squared = self.error[plain] ** 2 / (self.variance + self.noise)[plain]
        total = float(np.minimum(squared, _UNLIKE_OTHERS**2).sum())
        return float(np.clip((total + _MODELLED) / (len(squared) + _MODELLED), _LEAST, _MOST))


def contradictory(evidence: Evidence, left_out: LeftOut) -> Floats:
    """[N] median squared error of jobs of which most rows contradict the others, even those already discounted; else 0.

    Some rows of such a job are plausible by chance, and would say much of its partners.
    """
    off = np.abs(left_out.error) > _UNLIKE_OTHERS * np.sqrt(left_out.variance + evidence.noise)
    jobs = keys_of(evidence.members, evidence.rows.own)
    jobs[: evidence.training] = -1
    names, job, count = np.unique(jobs, return_inverse=True, return_counts=True)
    wrong = (names >= 0) & (count >= _ENOUGH) & (2 * np.bincount(job, off, len(names)) > count)
    result = np.zeros(len(jobs))
    for number in np.flatnonzero(wrong).tolist():
        result[job == number] = np.median(left_out.error[job == number] ** 2)
    return result


def calibrated(variance: _Variance, prior_variance: _Variance, ratio: float) -> _Variance:
    """A variance after observations, corrected by how well they predict each other, as far as they explain the
    prior one.

    Args:
        variance, prior_variance: with and without observations.
        ratio: actual over modelled variance of what observations predict.
    """
    explained = (1.0 - variance / prior_variance) * (variance < prior_variance)
    return variance * (1.0 + explained * (ratio - 1.0))
