"""Errors of predicted solo step times, one per job and device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular

from models.features import Floats
from predictor.gaussian_process.kernel import KernelParameters, Members, solo_covariance
from predictor.types import Bools

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

# Standard deviations beyond which an observed error is nothing that jobs have in common, such as an input
# pipeline, which no graph shows.
_IMPLAUSIBLE = 3.0
# Variance of an error that says nothing about other jobs.
_SAYS_NOTHING = 1e6


class SoloErrors:
    """A Gaussian process over log(actual / predicted) solo step times.

    An implausible error says nothing about other architectures. If several jobs of its architecture are wrong in
    the same direction on the device, they have that in common, and nothing with other architectures; otherwise it
    stands for its own job there, whatever is frozen, and only if it is confirmed.

    Args:
        parameters: kernel parameters.
        members: W observed ones, distinct in device and job.
        error: [W] observed.
        noise: [W] variance of the observation.
        confirmed: [W] whether more than one observation says so; by default, all are.

    Attributes:
        prior_variance: of any member, unless its architecture turned out to be implausibly wrong.
    """

    def __init__(
        self,
        parameters: KernelParameters,
        members: Members,
        error: Floats,
        noise: Floats,
        confirmed: Bools | None = None,
    ) -> None:
        self.parameters, self.members, self.error, self.noise = parameters, members, error, noise
        self._confirmed = confirmed
        self._of_number: Floats = np.zeros(0)
        self.prior_variance = parameters.solo_job + parameters.solo_like + parameters.solo_model
        implausible = np.abs(error) > _IMPLAUSIBLE * np.sqrt(self.prior_variance + noise)
        self._wrong = self._wrong_architectures(implausible)
        for device, model, _ in self._wrong:
            implausible &= (members.device != device) | (members.model != model)
        self._apart = np.flatnonzero(implausible & (True if confirmed is None else confirmed))
        gram = self._covariance(members, members)
        gram[np.diag_indices_from(gram)] += np.where(implausible, _SAYS_NOTHING, noise)
        self._factor = cholesky(gram, lower=True, check_finite=False)
        self.weight = cho_solve((self._factor, True), np.where(implausible, 0.0, error), check_finite=False)

    def _wrong_architectures(self, implausible: Bools) -> list[tuple[int, int, float]]:
        """(device, model, variance) of architectures of which several jobs are implausibly wrong in one
        direction."""
        result, members = [], self.members
        keys = np.stack([members.device, members.model, self.error > 0], 1)[implausible]
        for (device, model, longer), count in zip(*np.unique(keys, axis=0, return_counts=True), strict=True):
            if count > 1:
                here = implausible & (members.device == device) & (members.model == model)
                here &= (self.error > 0) == longer
                result.append((int(device), int(model), float(np.median(self.error[here]) ** 2)))
        return result

    def _covariance(self, a: Members, b: Members) -> Floats:
        total = solo_covariance(self.parameters, a, b)
        for device, model, variance in self._wrong:
            left, right = ((m.device == device) & (m.model == model) for m in (a, b))
            # How far the architecture's jobs are from what they have in common says nothing of others either.
            total[np.not_equal.outer(a.model == model, b.model == model)] = 0.0
            total += variance * np.outer(left, right)
        return total

    def _prior_variance(self, members: Members) -> Floats:
        total = np.full(len(members), self.prior_variance)
        for device, model, variance in self._wrong:
            total += variance * ((members.device == device) & (members.model == model))
        return total

    @classmethod
    def nothing(cls, parameters: KernelParameters) -> SoloErrors:
        """Without observations."""
        return cls(parameters, Members(np.zeros((0, 0))), np.zeros(0), np.zeros(0))

    @classmethod
    def after(
        cls,
        earlier: SoloErrors | None,
        parameters: KernelParameters,
        members: Members,
        error: Floats,
        noise: Floats,
        confirmed: Bools,
    ) -> SoloErrors:
        """`earlier` if it has these arguments, for what it has computed."""
        given = *vars(members).values(), error, noise, confirmed
        if earlier is not None and earlier.parameters == parameters and len(earlier):
            had = *vars(earlier.members).values(), earlier.error, earlier.noise, earlier._confirmed
            if all(map(np.array_equal, given, had)):
                return earlier
        return cls(parameters, members, error, noise, confirmed)

    def __len__(self) -> int:
        return len(self.error)

    def mean(self, members: Members) -> Floats:
        """[V] errors of members."""
        if not len(self):
            return np.zeros(len(members))
        return self._mean(members, self._covariance(members, self.members))

    def mean_of(self, known: Members, numbers: Integers) -> Floats:
        """[R] `mean` of known members by number, computed once for each: they keep their numbers."""
        means = np.full(len(known), np.nan)
        earlier = self._of_number[: len(known)]  # another thread may know more
        means[: len(earlier)] = earlier
        new = np.unique(numbers[np.isnan(means[numbers])])
        if len(new):
            means[new] = self.mean(known.take(new))
            self._of_number = means
        return np.asarray(means[numbers])

    def _mean(self, members: Members, cross: Floats) -> Floats:
        result = cross @ self.weight
        here, observed = self._places_apart(members)
        result[here] = self.error[observed]
        return np.asarray(result)

    def answer(self, members: Members) -> tuple[Floats, Floats, Floats]:
        """[V] errors of members, [V] their variances, and [V, W] what every observed member adds to an error."""
        count = len(members)
        if not len(self):
            return np.zeros(count), np.full(count, self.prior_variance), np.zeros((count, 0))
        cross = self._covariance(members, self.members)
        half = solve_triangular(self._factor, cross.T, lower=True, check_finite=False)
        variance = np.maximum(self._prior_variance(members) - (half**2).sum(0), 0.0)
        added = cross * self.weight
        here, observed = self._places_apart(members)
        variance[here], added[here] = np.minimum(self.noise[observed], self.prior_variance), 0.0
        added[here, observed] = self.error[observed]
        return self._mean(members, cross), variance, added

    def joint(self, members: Members) -> tuple[Floats, Floats]:
        """[V] errors of members and [V, V] their covariance; all are taken to be new jobs."""
        total = self._covariance(members, members)
        if not len(self):
            return np.zeros(len(members)), total
        cross = self._covariance(members, self.members)
        half = solve_triangular(self._factor, cross.T, lower=True, check_finite=False)
        return cross @ self.weight, total - half.T @ half

    def standing_apart(self, members: Members) -> Floats:
        """[V] implausible errors that members have for themselves; 0 for most."""
        result = np.zeros(len(members))
        here, observed = self._places_apart(members)
        result[here] = self.error[observed]
        return result

    def _places_apart(self, members: Members) -> tuple[Integers, Integers]:
        """Numbers of the members with an implausible error of their own, and its places among the observed.

        A job that was not observed has that of the same with other frozen layers, if all of these stand apart: of
        several, the one nearest to the prediction.
        """
        if not len(self._apart):
            return self._apart, self._apart
        same = np.equal.outer(members.device, self.members.device)
        own = same & np.equal.outer(members.job, self.members.job)
        same &= np.equal.outer(members.unfrozen, self.members.unfrozen)
        same = np.where(own.any(1, keepdims=True), own, same)
        apart = np.zeros(len(self), dtype=bool)
        apart[self._apart] = True
        here = np.flatnonzero(same.any(1) & ~(same & ~apart).any(1))
        return here, np.where(same[here], np.abs(self.error), np.inf).argmin(1)
