"""The prior of a predictor's errors: a kernel, and training pairs about which the predictor is right.

A predictor errs on jobs that it has not learned from rather than on those that it has. Given some of its training
pairs, the process takes the errors seen on a new job for that job's, and less for everybody's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from models.features import Floats, is_cpu
from predictor.learning.config import UNEXPLAINED, PosteriorConfig
from predictor.learning.covariances import Evidence
from predictor.learning.kernel import KernelParameters, Members
from predictor.learning.members import default_scale
from predictor.learning.prior_variance import PriorVariance
from predictor.learning.process import CANNOT_BE, Process
from predictor.learning.trained_pairs import TrainedPairs
from profiling.devices import get_device, is_known

if TYPE_CHECKING:
    from predictor.examples.examples import Integers
    from predictor.learning.set_process import SetProcess

# Of training pairs that hold in the user's cluster against such that do not.
_LOG_PRIOR_ODDS = 2.0
# Observed rows, of lowest rank, that tell whether the predictor is right about its training pairs.
_MOST_COMPARED = 64
# Smallest variance, so that its inverse is finite.
_LEAST = 1e-9


@dataclass(frozen=True)
class Prior:
    """A kernel, and pairs about which the predictor is right.

    Attributes:
        parameters: kernel parameters.
        trained: the pairs.
        members: V members that these number.
    """

    parameters: KernelParameters
    trained: TrainedPairs
    members: Members

    @classmethod
    def nothing(cls, parameters: KernelParameters) -> Prior:
        """The kernel alone."""
        return cls(parameters, TrainedPairs.nothing(), Members(np.zeros((0, 0))))

    @cached_property
    def process(self) -> Process:
        """Given these pairs alone."""
        return Process(self.parameters, self._pairs, max(len(self.trained), 1))

    @cached_property
    def variance(self) -> PriorVariance:
        """Variances without the pairs."""
        return PriorVariance(self.parameters)

    @property
    def _pairs(self) -> Evidence:
        trained, count = self.trained, len(self.trained)
        zero = np.zeros(count)
        return Evidence(
            self.members, trained.rows, zero, trained.noise, zero.astype(bool), np.arange(count), zero + 1.0, zero,
            count,
        )  # fmt: skip

    def and_observed(self, observed: Evidence) -> Evidence:
        """The pairs, but for those that were observed themselves, followed by observations of members that begin
        with these."""
        if not len(self.trained):
            return observed
        noise = self.trained.noise_beside(observed.members, observed.rows)
        return replace(self._pairs, members=observed.members, noise=noise).joined(observed)

    def without_pairs(self, variance: float, before: float, plain: float) -> tuple[float, float]:
        """Variances with and without observations as if the pairs were unknown.

        They narrow the predictor's intervals, which are those for jobs that it has not learned from.

        Args:
            variance, before: with and without observations, given the pairs.
            plain: without either, by the kernel.
        """
        if not len(self.trained):
            return variance, before
        told = max(1.0 / max(variance, _LEAST) - 1.0 / max(before, _LEAST), 0.0)
        plain *= UNEXPLAINED
        return 1.0 / (told + 1.0 / plain), plain

    def log_likelihood(self, observed: Evidence) -> float:
        """See `log_likelihood`."""
        _, covariance = self.process.joint(observed.members, observed.rows)
        return log_likelihood(observed.target, covariance, observed.noise)


class Priors:
    """Priors, by the devices and sharing modes that something was observed on.

    Args:
        config: how observations are used.
        process: of the predictor's training sets, if it has one.

    Attributes:
        start: members of these sets, which take the first numbers.
        ignorant: the prior without training pairs.
    """

    def __init__(self, config: PosteriorConfig, process: SetProcess | None = None) -> None:
        self._config, self._process = config, process
        p = config.parameters
        self.start = None if process is None else process.seen_on(default_scale(), p)
        self._plain = Prior.nothing(p)
        self.ignorant = Prior.nothing(config.around_predictor)
        self._made: dict[tuple[int, ...], Prior] = {}

    def of(self, members: Members, own: Integers) -> Prior:
        """With training pairs of the devices and sharing modes of some members, if there are any.

        Args:
            members: that begin with `start`.
            own: numbers of the observed ones.
        """
        key = tuple(np.intersect1d(members.setting[own], self._settings).tolist())
        if self.start is None or not key:
            return self.ignorant
        if key not in self._made:
            trained = self._trained.within(np.array(key))
            informed = Prior(self._config.parameters, trained, self.start.members)
            self._made[key] = informed if len(trained) else self.ignorant
        return self._made[key]

    def contradicted(self, prior: Prior, observed: Evidence) -> bool:
        """Whether observations speak against the prior's training pairs."""
        if not len(prior.trained):
            return False
        # What is implausible with or without the pairs says nothing about them.
        compared = _compared(observed, self.ignorant.variance.beside_one)
        if not self._contradicts(prior, compared):
            return False
        # Nor does one architecture: it may be run in another way than when it was measured.
        _, variance = prior.process.answer(compared.members, compared.rows)
        off = compared.target**2 / (variance + compared.noise)
        model = compared.members.model[compared.rows.own]
        return self._contradicts(
            prior, compared.take(np.flatnonzero(model != np.bincount(model, off).argmax()))
        )

    def _contradicts(self, prior: Prior, observed: Evidence) -> bool:
        return contradicts(*(p.log_likelihood(observed) for p in (prior, self._plain)))

    @cached_property
    def _settings(self) -> Integers:
        """Numbers of the settings on GPUs: a `cpu` is a core of any processor, so its pairs may be another one's."""
        devices = [] if self.start is None else [device for device, _ in self.start.settings]
        on_gpu = [is_known(device) and not is_cpu(get_device(device)) for device in devices]
        return np.flatnonzero(on_gpu)

    @cached_property
    def _trained(self) -> TrainedPairs:
        assert self._process is not None
        assert self.start is not None
        return TrainedPairs.of(self._process, self.start.members, self._config.parameters)


def _compared(observed: Evidence, variance: float) -> Evidence:
    """Some of the observations, without implausible ones.

    Args:
        observed: all; variance: prior variance of any.
    """
    spread = np.sqrt(variance + observed.noise)
    plausible = np.flatnonzero(np.abs(observed.target) <= CANNOT_BE * spread)
    lowest = np.argsort(observed.rank[plausible], kind="stable")[:_MOST_COMPARED]
    return observed.take(plausible[lowest])


def contradicts(informed: float, ignorant: float) -> bool:
    """Whether observations speak against the training pairs: a cluster unlike the one that these were measured in.

    There, the errors of known jobs say much about other ones.

    Args:
        informed, ignorant: log likelihood of the observations with and without the training pairs.
    """
    return informed + _LOG_PRIOR_ODDS < ignorant


def log_likelihood(error: Floats, covariance: Floats, noise: Floats) -> float:
    """Of observed errors [N] under a Gaussian process, but for a constant.

    Args:
        error: observed minus expected.
        covariance: [N, N] of the true errors; noise: [N] variance of the observations.
    """
    factor = cholesky(covariance + np.diag(noise), lower=True, check_finite=False)
    half = solve_triangular(factor, error, lower=True, check_finite=False)
    return float(-0.5 * half @ half - np.log(np.diag(factor)).sum())
