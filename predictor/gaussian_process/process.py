"""A Gaussian process conditioned on observations, robust against implausible ones.

Beyond some hundreds, rows are used through inducing rows (the deterministic training conditional:
Quinonero-Candela and Rasmussen, JMLR 2005; see `predictor.gaussian_process.inducing`). Their choice depends on the rows
alone, not on their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats
from predictor.gaussian_process.confirmed_pairs import ConfirmedPairs
from predictor.gaussian_process.covariances import Covariances, Evidence
from predictor.gaussian_process.job_keys import JOBS, keys_of
from predictor.gaussian_process.kernel import KernelParameters, Members
from predictor.gaussian_process.leave_one_out import contradictory
from predictor.gaussian_process.observed_sets import ObservedSets
from predictor.gaussian_process.own_effects import OwnEffects, most_observed_first
from predictor.gaussian_process.pair_table import PairWeights
from predictor.gaussian_process.rows import Rows, covariance, variance
from predictor.gaussian_process.solutions import ExactSolution, InducingSolution
from predictor.types import Bools

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

# Part of the variance of slowdowns that a network leaves unexplained on architectures that it has not seen.
# Parameters fitted to its errors were worse (docs/benchmarks.md).
UNEXPLAINED = 0.5
# Standard deviations from the prior beyond which a row, or all that was observed of a job, is an outlier.
CANNOT_BE = 3.0
# The variance attributed to an outlying job or row itself is its squared error times this.
_OWN_FAULT = 10.0
# Most jobs with an effect of their own: every sum grows with the square of their number.
_MOST_EFFECTS = 512
# Rows that are answered together.
_TOGETHER = 4096
# Noise added to rows is rounded to this much of its log, so that most keep theirs when an observation is added.
_GRID = 0.25


class Process:
    """The posterior given some evidence.

    Args:
        parameters: kernel parameters.
        evidence: the observations; may be empty.
        most_rows: largest number of rows used exactly; with more, at most this many inducing rows.
        earlier: process of evidence that this evidence extends by further rows. Saves time without changing
            results, and can still be queried afterwards.

    Attributes:
        used: numbers of the evidence rows that answers are computed from.
        confirmed: pairs with effects of their own, which `table` includes, but no other answer.
        sets: sets of three or more with effects of their own, which no answer includes.
    """

    def __init__(
        self,
        parameters: KernelParameters,
        evidence: Evidence,
        most_rows: int = 1024,
        earlier: Process | None = None,
    ) -> None:
        self.parameters, self.evidence = parameters, evidence
        self.own_effects = OwnEffects()
        self.noise = evidence.noise.copy()
        self.covariances: Covariances
        self.solution: ExactSolution | InducingSolution
        self.used: Integers = np.zeros(0, np.int64)
        self.variance_ratio, self.confirmed = 1.0, ConfirmedPairs.nothing()
        self.sets = ObservedSets.nothing()
        if not len(evidence.rows):
            return
        before = None if earlier is None or not len(earlier.evidence.rows) else earlier
        self.covariances = Covariances(
            parameters, evidence, most_rows, None if before is None else before.covariances
        )
        self._distrust(self.covariances.prior)
        self.used, self._rows = self.covariances.used, self.covariances.rows
        own = self.own_effects.columns(evidence.members, evidence.rows)
        # Such an effect is one of the user's cluster; the predictor was trained elsewhere.
        own[: evidence.training] = 0.0
        kind = ExactSolution if self.covariances.exact else InducingSolution
        self.solution = kind(self.covariances, own, evidence.target)
        start = self._start(before)
        self.solution.solve(self.noise, start)
        left_out = self.solution.left_out(self.noise)
        contrary = contradictory(evidence, left_out)
        if contrary.any():
            self.noise += _OWN_FAULT * self._rounded(contrary)
            self.solution.solve(self.noise, start)
            left_out = self.solution.left_out(self.noise)
        plain = (self.noise == evidence.noise) & (np.arange(len(self.noise)) >= evidence.training)
        self.variance_ratio = left_out.variance_ratio(plain)
        unlike = left_out.unlike
        if unlike.any():
            # If rows contradict each other, trust the one observed more often.
            own_fault = self._rounded(left_out.error**2 / evidence.count)
            self.noise += np.where(unlike, own_fault, 0.0)
            self.solution.solve_again(self.noise, start)
        self.confirmed = ConfirmedPairs.of(evidence, self.noise, self.solution.fitted)
        self.sets = ObservedSets.of(evidence, self.noise, self._composed)

    def _distrust(self, prior: Floats) -> None:
        """Discount observations that are implausible under the prior.

        A job whose observations are implausible as a whole is given an effect of its own, which says nothing
        about other jobs; of more than `_MOST_EFFECTS`, those observed in most sets. Single implausible rows, and those
        of the other jobs, are given noise to match, so the further off they are, the less they count.
        """
        evidence, members = self.evidence, self.evidence.members
        # With training pairs, the kernel's variances are larger than those of a predictor's errors.
        spread = np.sqrt(prior * (UNEXPLAINED if evidence.training else 1.0) + self.noise)
        own = evidence.rows.own
        off = np.abs(evidence.target) > CANNOT_BE * spread
        if not off.any():
            return
        variances: dict[tuple[int, int], float] = {}
        centre = np.zeros(len(own))
        jobs = keys_of(members, own)
        observed = np.arange(len(own)) >= evidence.training
        for job in most_observed_first(jobs, off, evidence.rank):
            if len(variances) == _MOST_EFFECTS:
                break
            rows = (jobs == job) & observed
            middle = float(np.median(evidence.target[rows]))
            if abs(middle) > CANNOT_BE * float(spread[rows].mean()):
                fault = float(self._rounded(np.array(middle**2)))
                variances[divmod(job, JOBS)] = _OWN_FAULT * fault
                centre[rows] = middle
                # Nor do differences between this job's sets say anything about its partners.
                self.noise[rows] += fault
        self.own_effects = OwnEffects(variances)
        error = evidence.target - centre
        off = np.abs(error) > CANNOT_BE * spread
        self.noise[off] += _OWN_FAULT * self._rounded(error[off] ** 2)

    def _rounded(self, variances: Floats) -> Floats:
        """Variances added to the noise of rows, [N]: beyond `most_rows` on a grid; 0 stays 0."""
        if self.covariances.exact:
            return variances
        with np.errstate(divide="ignore"):
            return np.asarray(np.exp(_GRID * np.round(np.log(variances) / _GRID)))

    def _start(self, before: Process | None) -> InducingSolution | None:
        """The solution of an earlier process, if its rows have the same loadings."""
        if before is None or not self.covariances.reused or self.own_effects != before.own_effects:
            return None
        return before.solution if isinstance(before.solution, InducingSolution) else None

    def _composed(self, rows: Integers) -> Floats:
        """[R] means of rows of the evidence, by number, with the effects of confirmed pairs."""
        evidence = self.evidence
        return self.solution.fitted(rows) + self.confirmed.within(evidence.members, evidence.rows.take(rows))

    def _seen_from(self, members: Members, rows: Rows) -> tuple[Floats, Floats]:
        """[R, used] covariance of queried rows with the used ones, and [R, effects] their loadings on own effects."""
        cross = covariance(self.parameters, members, rows, self.evidence.members, self._rows)
        own = self.own_effects.columns(members, rows)
        return self.solution.with_own(cross, own), own

    def answer(self, members: Members, rows: Rows) -> tuple[Floats, Floats]:
        """[R] mean and [R] variance of rows of `members`."""
        mean, spread = np.zeros(len(rows)), np.zeros(len(rows))
        for start in range(0, len(rows), _TOGETHER):
            part = np.arange(start, min(start + _TOGETHER, len(rows)))
            asked = rows.take(part)
            spread[part] = variance(self.parameters, members, asked)
            if not len(self.evidence.rows):
                continue
            cross, own = self._seen_from(members, asked)
            mean[part] = self.solution.mean(cross, own)
            spread[part] += (own**2).sum(1) - self.explained_sign @ self.solution.halves(cross, own) ** 2
        return mean, np.maximum(spread, 0.0)

    def changed_means(
        self, members: Members, rows: Rows, changes: Sequence[tuple[Process, Integers]]
    ) -> Floats:
        """[R] means of rows of `members`, some of them, by number, with what `changed` returned."""
        mean = np.zeros(len(rows))
        for start in range(0, len(rows), _TOGETHER):
            part = np.arange(start, min(start + _TOGETHER, len(rows)))
            cross, own = self._seen_from(members, rows.take(part))
            mean[part] = self.solution.mean(cross, own)
            for change, numbers in changes:
                here = numbers[(numbers >= start) & (numbers <= part[-1])]
                mean[here] += change.solution.mean(cross[here - start], own[here - start])
        return mean

    def joint(self, members: Members, rows: Rows) -> tuple[Floats, Floats]:
        """[R] mean and [R, R] covariance of rows of `members`."""
        total = covariance(self.parameters, members, rows, members, rows)
        if not len(self.evidence.rows):
            return np.zeros(len(rows)), total
        cross, own = self._seen_from(members, rows)
        half = self.solution.halves(cross, own)
        explained = half.T @ (self.explained_sign[:, None] * half)
        return self.solution.mean(cross, own), total + own @ own.T - explained

    @cached_property
    def pair_weights(self) -> PairWeights:
        """The data behind `table`; holds nothing else of the evidence."""
        known = self.evidence.members
        pairs = self._rows.pairs(known)
        used, index = np.unique(np.concatenate([pairs.own, pairs.partner]), return_inverse=True)
        weight, half = np.zeros((len(used), len(used))), len(pairs.own)
        np.add.at(weight, (index[:half], index[half:]), self.solution.weight[pairs.row] * pairs.share)
        own_means = (self.solution.own_weight * self.own_effects.deviation).tolist()
        private = [(*name, mean) for name, mean in zip(self.own_effects.names, own_means, strict=True)]
        return PairWeights(self.parameters, known.take(used), weight, used, tuple(private))

    def table(self, own: Members, partners: Members) -> Floats:
        """[V, W] mean of every member beside every partner."""
        if not len(self.evidence.rows):
            return np.zeros((len(own), len(partners)))
        means = self.pair_weights.table(own, partners)
        self.confirmed.added_to(means, own, partners)
        return means

    @property
    def observed(self) -> Integers:
        """Those of `used` that were observed, numbered without the training pairs."""
        return self.used[self._is_observed] - self.evidence.training

    @property
    def _is_observed(self) -> Bools:
        return self.used >= self.evidence.training

    @property
    def explained_sign(self) -> Floats:
        """[W] signs, 1 or -1, for the vectors of `parts`.

        The evidence reduces the covariance of two rows by the signed sum of the products of their vectors.
        """
        return self.solution.explained_sign if len(self.used) else np.ones(0)

    def parts(self, members: Members, rows: Rows) -> tuple[Floats, Floats, Floats]:
        """[R] mean, [R, W] vectors for `explained_sign`, and [R, observed] contribution of each of `observed` to
        the mean.

        All three are linear in the rows: those of a set are the means over its pairs.
        """
        if not len(self.used):
            return np.zeros(len(rows)), np.zeros((len(rows), 0)), np.zeros((len(rows), 0))
        cross, own = self._seen_from(members, rows)
        solution = self.solution
        added = solution.added(cross, own)[:, self._is_observed]
        return solution.mean(cross, own), solution.halves(cross, own).T, added

    def changed(self, rows: Integers, change: Floats) -> Process:
        """A process whose means are by how much those of this one change with the targets of some rows.

        Weights stay, so changes add up.

        Args:
            rows: numbers of the rows; change: [len(rows)] of their targets.
        """
        other, moved = copy(self), np.zeros(len(self.evidence.rows))
        other.__dict__.pop("pair_weights", None)
        moved[rows] = change
        other.solution = self.solution.changed(rows, change)
        pairs, sets = self.confirmed, self.sets
        other.confirmed = pairs.changed(moved[pairs.row], other.solution.fitted(pairs.row))
        other.sets = sets.changed(moved[sets.row], other._composed(sets.row))
        return other
