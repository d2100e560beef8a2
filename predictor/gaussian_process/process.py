"""A Gaussian process conditioned on observations, robust against implausible ones.

Beyond some hundreds, rows are used through inducing rows (the deterministic training conditional:
Quinonero-Candela and Rasmussen, JMLR 2005; see `predictor.gaussian_process.inducing`). Their choice depends on the rows
alone, not on their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from models.features import Floats
from predictor.gaussian_process.confirmed_pairs import ConfirmedPairs
from predictor.gaussian_process.covariances import Covariances, Evidence
from predictor.gaussian_process.job_keys import JOBS, keys_of
from predictor.gaussian_process.kernel import KernelParameters, Members
from predictor.gaussian_process.leave_one_out import LeftOut, contradictory
from predictor.gaussian_process.observed_sets import ObservedSets
from predictor.gaussian_process.own_effects import OwnEffects, most_observed_first
from predictor.gaussian_process.pair_table import PairWeights
from predictor.gaussian_process.precision import Before, LeveragedPrecision, Precision, solved
from predictor.gaussian_process.rows import Rows, covariance, variance
from predictor.types import Bools

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

_Sum = TypeVar("_Sum", bound=Precision)
# Part of the variance of slowdowns that a network leaves unexplained on architectures that it has not seen.
# Parameters fitted to its errors were worse (docs/benchmarks.md).
UNEXPLAINED = 0.5
# Standard deviations from the prior beyond which a row, or all that was observed of a job, is an outlier.
CANNOT_BE = 3.0
# The variance attributed to an outlying job or row itself is its squared error times this.
_OWN_FAULT = 10.0
# Most jobs with an effect of their own: every sum grows with the square of their number.
_MOST_EFFECTS = 512
_JITTER = 1e-8
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
        self._inner: Floats | None = None
        self._precision: LeveragedPrecision
        self._final: Precision
        self.covariances: Covariances
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
        self._own = self.own_effects.columns(evidence.members, evidence.rows)
        # Such an effect is one of the user's cluster; the predictor was trained elsewhere.
        self._own[: evidence.training] = 0.0
        self._through = self._loadings()
        starts, left_out = self._fit(before)
        contrary = contradictory(evidence, left_out)
        if contrary.any():
            self.noise += _OWN_FAULT * self._rounded(contrary)
            starts, left_out = self._fit(before)
        plain = (self.noise == evidence.noise) & (np.arange(len(self.noise)) >= evidence.training)
        self.variance_ratio = left_out.variance_ratio(plain)
        unlike = left_out.unlike
        if unlike.any():
            # If rows contradict each other, trust the one observed more often.
            own_fault = self._rounded(left_out.error**2 / evidence.count)
            self.noise += np.where(unlike, own_fault, 0.0)
            self._condition(starts)
        self.confirmed = ConfirmedPairs.of(evidence, self.noise, self._fitted)
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

    def _loadings(self) -> Floats | None:
        """[N, used + effects] of all rows on the inducing rows and on own effects, each of unit variance; None if
        all rows are used."""
        known = self.covariances
        if known.exact:
            self._gram = known.gram + self._own @ self._own.T if len(self.own_effects) else known.gram
            return None
        self._factor = known.factor
        return np.concatenate([known.through, self._own], 1) if len(self.own_effects) else known.through

    def _fit(self, before: Process | None) -> tuple[list[Before[Precision]], LeftOut]:
        """Weigh the rows for the first time; sums of these weights, and what is then left out."""
        starts: list[Before[Precision]] = []
        if self._through is not None:
            first = self._since(before, lambda one: one._precision)
            final = self._since(before, lambda one: one._final)
            self._precision = LeveragedPrecision(self._through, 1.0 / self.noise, self.evidence.target, first)
            starts = [*([] if final is None else [final]), Before(self._precision)]
        self._condition(starts)
        return starts, self._left_out()

    def _since(self, before: Process | None, precision: Callable[[Process], _Sum]) -> Before[_Sum] | None:
        """What an earlier process had summed up, if its rows have the same loadings."""
        if before is None or not self.covariances.reused or self.own_effects != before.own_effects:
            return None
        replaced, former = self.covariances.replaced
        if not len(replaced):
            return Before(precision(before))
        return None if len(self.own_effects) else Before(precision(before), replaced, former)

    def _condition(self, starts: Sequence[Before[Precision]]) -> None:
        """Weigh the rows; `starts` are sums of earlier weights."""
        if self._through is None:
            gram = self._gram.copy()
            gram[np.diag_indices_from(gram)] += self.noise + _JITTER
            self._factor = cholesky(gram, lower=True, check_finite=False, overwrite_a=True)
            self.weight = solved(self._factor, self.evidence.target)
            return
        self._final = Precision(self._through, 1.0 / self.noise, self.evidence.target, starts)
        self._inner = self._final.factor
        inner = solved(self._inner, self._final.information)
        self._solved_inner, count = inner, len(self.used)
        self.weight = solve_triangular(self._factor, inner[:count], lower=True, trans=1, check_finite=False)
        self._own_weight = inner[count:]

    def _left_out(self) -> LeftOut:
        """Each row, predicted from the other ones."""
        through, noise = self._through, self.noise
        if through is None:
            inverse = solve_triangular(self._factor, np.eye(len(self.used)), lower=True, check_finite=False)
            return LeftOut.of((inverse**2).sum(0), self.weight, noise)
        # What the inducing rows do not explain of a row, no other row does.
        unexplained = self.covariances.unexplained
        residual = self.evidence.target - through @ self._solved_inner
        share = np.minimum(self._precision.leverage / noise, 1 - 1e-6)
        variance = noise * share / (1 - share) + unexplained
        return LeftOut(residual / (1 - share), variance, noise)

    def _fitted(self, rows: Integers) -> Floats:
        """[R] means of rows of the evidence, by number."""
        if self._through is None:
            return np.asarray(self._gram[np.ix_(rows, self.used)] @ self.weight)
        return np.asarray(self._through[rows] @ self._solved_inner)

    def _composed(self, rows: Integers) -> Floats:
        """[R] means of rows of the evidence, by number, with the effects of confirmed pairs."""
        evidence = self.evidence
        return self._fitted(rows) + self.confirmed.within(evidence.members, evidence.rows.take(rows))

    def _seen_from(self, members: Members, rows: Rows) -> tuple[Floats, Floats]:
        """[R, used] covariance of queried rows with the used ones, and [R, effects] their loadings on own effects.

        If all rows are used, the covariance includes own effects.
        """
        cross = covariance(self.parameters, members, rows, self.evidence.members, self._rows)
        own = self.own_effects.columns(members, rows)
        if self._inner is None and len(self.own_effects):
            cross += own @ self._own[self.used].T
        return cross, own

    def _mean(self, cross: Floats, own: Floats) -> Floats:
        return cross @ self.weight if self._inner is None else cross @ self.weight + own @ self._own_weight

    def _halves(self, cross: Floats, own: Floats) -> Floats:
        """[W, R] vectors for `explained_sign`."""
        half = solve_triangular(self._factor, cross.T, lower=True, check_finite=False)
        if self._inner is None:
            return half
        half = np.concatenate([half, own.T])
        left = solve_triangular(self._inner, half, lower=True, check_finite=False)
        return np.concatenate([half, left])

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
            mean[part] = self._mean(cross, own)
            spread[part] += (own**2).sum(1) - self.explained_sign @ self._halves(cross, own) ** 2
        return mean, np.maximum(spread, 0.0)

    def changed_means(
        self, members: Members, rows: Rows, changes: Sequence[tuple[Process, Integers]]
    ) -> Floats:
        """[R] means of rows of `members`, some of them, by number, with what `changed` returned."""
        mean = np.zeros(len(rows))
        for start in range(0, len(rows), _TOGETHER):
            part = np.arange(start, min(start + _TOGETHER, len(rows)))
            cross, own = self._seen_from(members, rows.take(part))
            mean[part] = self._mean(cross, own)
            for change, numbers in changes:
                here = numbers[(numbers >= start) & (numbers <= part[-1])]
                mean[here] += change._mean(cross[here - start], own[here - start])
        return mean

    def joint(self, members: Members, rows: Rows) -> tuple[Floats, Floats]:
        """[R] mean and [R, R] covariance of rows of `members`."""
        total = covariance(self.parameters, members, rows, members, rows)
        if not len(self.evidence.rows):
            return np.zeros(len(rows)), total
        cross, own = self._seen_from(members, rows)
        half = self._halves(cross, own)
        return self._mean(cross, own), total + own @ own.T - half.T @ (self.explained_sign[:, None] * half)

    @cached_property
    def pair_weights(self) -> PairWeights:
        """The data behind `table`; holds nothing else of the evidence."""
        known = self.evidence.members
        pairs = self._rows.pairs(known)
        used, index = np.unique(np.concatenate([pairs.own, pairs.partner]), return_inverse=True)
        weight, half = np.zeros((len(used), len(used))), len(pairs.own)
        np.add.at(weight, (index[:half], index[half:]), self.weight[pairs.row] * pairs.share)
        own = self._own_weight if self._inner is not None else self._own[self.used].T @ self.weight
        own_means = (own * self.own_effects.deviation).tolist()
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

    @cached_property
    def explained_sign(self) -> Floats:
        """[W] signs, 1 or -1, for the vectors of `parts`.

        The evidence reduces the covariance of two rows by the signed sum of the products of their vectors.
        """
        count = len(self.used)
        if self._inner is None:
            return np.ones(count)
        return np.repeat([1.0, -1.0], len(self._inner))

    def parts(self, members: Members, rows: Rows) -> tuple[Floats, Floats, Floats]:
        """[R] mean, [R, W] vectors for `explained_sign`, and [R, observed] contribution of each of `observed` to
        the mean.

        All three are linear in the rows: those of a set are the means over its pairs.
        """
        if not len(self.used):
            return np.zeros(len(rows)), np.zeros((len(rows), 0)), np.zeros((len(rows), 0))
        cross, own = self._seen_from(members, rows)
        added = cross * self.weight
        if self._inner is not None and len(self.own_effects):
            # What a job has for itself is put down to its used rows, if there are any.
            shares = self._own[self.used] > 0
            added += (own * self._own_weight) @ (shares / np.maximum(shares.sum(0), 1)).T
        return self._mean(cross, own), self._halves(cross, own).T, added[:, self._is_observed]

    def response(self, rows: Integers, change: Floats) -> Floats:
        """[W] vector whose product with those of `parts` says by how much means move if the targets of some
        rows change.

        Args:
            rows: numbers of the rows; change: [len(rows)].
        """
        through = self._through
        if through is None or self._inner is None:
            moved = np.zeros(len(self.evidence.rows))
            moved[rows] = change
            moved = moved[self.used]
            return np.asarray(solve_triangular(self._factor, moved, lower=True, check_finite=False))
        moved = through[rows].T @ (change * self._final.weight[rows])
        inner = solve_triangular(self._inner, moved, lower=True, check_finite=False)
        return np.concatenate([np.zeros(len(inner)), inner])

    def changed(self, rows: Integers, change: Floats) -> Process:
        """A process whose means are by how much those of this one change with the targets of some rows.

        Weights stay, so changes add up.

        Args:
            rows: numbers of the rows; change: [len(rows)] of their targets.
        """
        other, moved = copy(self), np.zeros(len(self.evidence.rows))
        other.__dict__.pop("pair_weights", None)
        moved[rows] = change
        through = self._through
        if through is None or self._inner is None:
            other.weight = solved(self._factor, moved[self.used])
        else:
            count = len(self.used)
            inner = solved(self._inner, through[rows].T @ (change * self._final.weight[rows]))
            other.weight = solve_triangular(
                self._factor, inner[:count], lower=True, trans=1, check_finite=False
            )
            other._own_weight, other._solved_inner = inner[count:], inner
        pairs, sets = self.confirmed, self.sets
        other.confirmed = pairs.changed(moved[pairs.row], other._fitted(pairs.row))
        other.sets = sets.changed(moved[sets.row], other._composed(sets.row))
        return other
