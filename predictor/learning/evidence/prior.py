"""The prior of a predictor's errors: a kernel, and training pairs about which the predictor is right.

A predictor errs on jobs that it has not learned from rather than on those that it has. Given some of its training
pairs, the process takes the errors seen on a new job for that job's, and less for everybody's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from models.features import Floats
from predictor.gaussian_process.covariances import Evidence
from predictor.gaussian_process.kernel import KernelParameters, Members
from predictor.gaussian_process.members import default_scale
from predictor.gaussian_process.prior_variance import PriorVariance
from predictor.gaussian_process.process import CANNOT_BE, UNEXPLAINED, Process
from predictor.gaussian_process.rows import Rows
from predictor.learning.evidence.config import PosteriorConfig
from predictor.learning.evidence.training_pairs import TrainingPairs

if TYPE_CHECKING:
    from predictor.examples.examples import Integers
    from predictor.gaussian_process.set_process import SetProcess

# Of training pairs that hold in the user's cluster against such that do not.
_LOG_PRIOR_ODDS = 2.0
# Observed rows that tell whether the predictor is right about its training pairs, and how its parts count.
_MOST_COMPARED = 64
# Cached variances, beyond which the cache is emptied.
_MOST_KEPT = 50_000
# Smallest variance, so that its inverse is finite.
_LEAST = 1e-9


@dataclass(frozen=True)
class Prior:
    """A kernel, and pairs about which the predictor is right.

    Attributes:
        parameters: kernel parameters.
        training: the pairs.
        members: V members that these number.
    """

    parameters: KernelParameters
    training: TrainingPairs
    members: Members
    # Caches: one more observation changes few rows.
    _variances: dict[bytes, float] = field(default_factory=dict, repr=False, compare=False)
    _covariances: dict[tuple[bytes, bytes], Floats] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def nothing(cls, parameters: KernelParameters) -> Prior:
        """The kernel alone."""
        return cls(parameters, TrainingPairs.nothing(), Members(np.zeros((0, 0))))

    @cached_property
    def process(self) -> Process:
        """Given these pairs alone."""
        return Process(self.parameters, self._pairs, max(len(self.training), 1))

    def variances(self, members: Members, rows: Rows) -> Floats:
        """[R] variances of rows of members that begin with those of the prior."""
        keys = [row.tobytes() for row in np.concatenate([rows.own[:, None], rows.partners], 1)]
        known = {key: found for key in keys if (found := self._variances.get(key)) is not None}
        lacking = [place for place, key in enumerate(keys) if key not in known]
        if lacking:
            _, new = self.process.answer(members, rows.take(np.array(lacking)))
            known.update(zip([keys[place] for place in lacking], new.tolist(), strict=True))
            if len(self._variances) > _MOST_KEPT:
                self._variances.clear()
            self._variances.update(known)
        return np.array([known[key] for key in keys], dtype=np.float64)

    def covariance(self, members: Members, rows: Rows) -> Floats:
        """[R, R] covariance of rows of members that begin with those of the prior."""
        key = rows.own.tobytes(), rows.partners.tobytes()
        found = self._covariances.get(key)
        if found is None:
            found = self.process.joint(members, rows)[1]
            self._covariances.clear()
            self._covariances[key] = found
        return found

    @cached_property
    def variance(self) -> PriorVariance:
        """Variances without the pairs."""
        return PriorVariance(self.parameters)

    @property
    def _pairs(self) -> Evidence:
        training, count = self.training, len(self.training)
        zero = np.zeros(count)
        return Evidence(
            self.members, training.rows, zero, training.noise, np.arange(count), zero + 1.0, zero,
            count,
        )  # fmt: skip

    def and_observed(self, observed: Evidence) -> Evidence:
        """The pairs, but for those that were observed themselves, followed by observations of members that begin
        with these."""
        if not len(self.training):
            return observed
        noise = self.training.noise_beside(observed.members, observed.rows)
        return replace(self._pairs, members=observed.members, noise=noise).joined(observed)

    def without_pairs(self, variance: float, before: float, plain: float) -> tuple[float, float]:
        """Variances with and without observations as if the pairs were unknown.

        They narrow the predictor's intervals, which are those for jobs that it has not learned from.

        Args:
            variance, before: with and without observations, given the pairs.
            plain: without either, by the kernel.
        """
        if not len(self.training):
            return variance, before
        told = max(1.0 / max(variance, _LEAST) - 1.0 / max(before, _LEAST), 0.0)
        plain *= UNEXPLAINED
        return 1.0 / (told + 1.0 / plain), plain


class Compared(NamedTuple):
    """Observed rows that a predictor is judged by.

    Attributes:
        numbers: [N] of the rows.
        evidence: these rows.
        covariance: [N, N] of the predictor's true errors, before anything was observed.
    """

    numbers: Integers
    evidence: Evidence
    covariance: Floats


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
        pairs = self._pairs
        key = tuple(np.intersect1d(members.setting[own], pairs.setting).tolist())
        if self.start is None or not key:
            return self.ignorant
        if key not in self._made:
            self._made[key] = Prior(self._config.parameters, pairs.within(np.array(key)), self.start.members)
        return self._made[key]

    def compared(self, prior: Prior, observed: Evidence) -> Compared:
        """Some observed rows that are plausible for a predictor, with a prior for them.

        They are as many of every architecture as there is room for, those of lowest rank: the predictor is not judged by
        one that was observed a thousand times.
        """
        some = plausible(observed.target, self.ignorant.variance.beside_one, observed.noise)
        model = observed.members.model[observed.rows.own[some]]
        order = np.lexsort((observed.rank[some], model))
        some, model = some[order], model[order]
        place = np.arange(len(some)) - np.searchsorted(model, model)
        numbers = some[np.lexsort((observed.rank[some], place))[:_MOST_COMPARED]]
        evidence = observed.take(numbers)
        return Compared(numbers, evidence, prior.covariance(evidence.members, evidence.rows))

    def contradicted(self, prior: Prior, observed: Compared) -> bool:
        """Whether observations speak against the prior's training pairs; see `contradicts`."""
        if not len(prior.training):
            return False
        some = observed.evidence
        plain = self._plain.covariance(some.members, some.rows)
        model = some.members.model[some.rows.own]
        return contradicts(some.target, some.noise, model, observed.covariance, plain)

    @cached_property
    def _pairs(self) -> TrainingPairs:
        if self._process is None or self.start is None:
            return TrainingPairs.nothing()
        return TrainingPairs.of(self._process, self.start.members, self._config.parameters)


def plausible(error: Floats, variance: Floats | float, noise: Floats) -> Integers:
    """Numbers of the errors [N] that are plausible for a predictor; others say nothing about training pairs.

    Args:
        error: observed minus expected.
        variance: of the predictor's true errors; noise: [N] of the observations.
    """
    return np.flatnonzero(np.abs(error) <= CANNOT_BE * np.sqrt(variance + noise))


def contradicts(error: Floats, noise: Floats, model: Integers, informed: Floats, plain: Floats) -> bool:
    """Whether observations speak against the training pairs: a cluster unlike the one that these were measured in.

    There, the errors of known jobs say much about other ones. One architecture alone does not tell, because it may be
    run in another way than when it was measured.

    Args:
        error: [N] observed minus expected; noise: [N] variance of the observations.
        model: [N] numbers of architectures.
        informed, plain: [N, N] covariance of the true errors with and without the training pairs.
    """

    def less_probable(rows: Integers) -> bool:
        place = np.ix_(rows, rows)
        with_pairs, without = (
            _log_likelihood(error[rows], covariance[place], noise[rows]) for covariance in (informed, plain)
        )
        return with_pairs + _LOG_PRIOR_ODDS < without

    if not less_probable(np.arange(len(error))):
        return False
    worst = np.bincount(model, error**2 / (np.diag(informed) + noise)).argmax()
    return less_probable(np.flatnonzero(model != worst))


def _log_likelihood(error: Floats, covariance: Floats, noise: Floats) -> float:
    """Of observed errors [N] under a Gaussian process, but for a constant."""
    factor = cholesky(covariance + np.diag(noise), lower=True, check_finite=False)
    half = solve_triangular(factor, error, lower=True, check_finite=False)
    return float(-0.5 * half @ half - np.log(np.diag(factor)).sum())
