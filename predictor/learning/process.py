"""A Gaussian process conditioned on what was observed, robust against observations that cannot be true.

Rows beyond some hundreds are used through inducing rows (the deterministic training conditional: Quinonero-Candela and Rasmussen,
JMLR 2005). Which rows these are depends on the rows alone and not on their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from models.features import Floats
from predictor.learning.kernel import KernelParameters, MemberKernel, Members
from predictor.learning.rows import Rows, covariance, variance

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

# Standard deviations beyond which a row, or everything that was seen of a job, is no longer believed to be like the rest.
_CANNOT_BE, _UNLIKE_OTHERS = 3.0, 4.0
# How much of what cannot be true is put down to the job or the row itself: this many times its square, against the variance of all else.
_OWN_FAULT = 10.0
_JITTER = 1e-8
# Rows of a question that are answered together.
_TOGETHER = 4096


@dataclass(frozen=True)
class Evidence:
    """What was observed.

    Attributes:
        members: V members.
        rows: N rows of them.
        target: [N] observed minus prior mean, on the scale of `predictor.learning.link`.
        noise: [N] variance of the observation.
        bound: [N] whether the observation is an upper bound.
        rank: [N] numbers that order the rows whatever order they came in; the lowest are the inducing rows.
    """

    members: Members
    rows: Rows
    target: Floats
    noise: Floats
    bound: np.ndarray
    rank: Integers


class Process:
    """The posterior given some evidence.

    Args:
        parameters: of the kernel.
        evidence: what was observed; may be empty.
        most_rows: beyond this number, rows are used through so many inducing rows.
    """

    def __init__(self, parameters: KernelParameters, evidence: Evidence, most_rows: int = 1024) -> None:
        self.parameters, self.evidence, self.most_rows = parameters, evidence, most_rows
        self.private: dict[tuple[int, int], float] = {}
        self.noise = evidence.noise.copy()
        if not len(evidence.rows):
            return
        self._distrust(variance(parameters, evidence.members, evidence.rows))
        active = ~evidence.bound
        self._condition(active)
        error, spread = self._left_one_out(active)
        unlike = np.abs(error) > _UNLIKE_OTHERS * spread
        if unlike.any():
            self.noise[np.flatnonzero(active)[unlike]] += error[unlike] ** 2
            self._condition(active)
        if evidence.bound.any():
            # A bound that is kept to anyhow says next to nothing; one that is not is taken for a value.
            mean, _ = self.answer(evidence.members, evidence.rows, with_variance=False)
            active = active | (evidence.bound & (mean > evidence.target))
            self._condition(active)

    def _distrust(self, prior: Floats) -> None:
        """Give a job whose observations cannot be true as a whole an effect of its own, which says nothing of other jobs, and rows that
        cannot be true noise to match, so that they pull the less the further off they are."""
        evidence, members = self.evidence, self.evidence.members
        spread = np.sqrt(prior + self.noise)
        own = evidence.rows.own
        centre = np.zeros(len(own))
        keys = np.stack([members.setting[own], members.job[own]], 1)
        groups, where = np.unique(keys, axis=0, return_inverse=True)
        off = np.abs(evidence.target) > _CANNOT_BE * spread
        for number in np.unique(where[off]):
            rows = where == number
            middle = float(np.median(evidence.target[rows]))
            if abs(middle) > _CANNOT_BE * float(spread[rows].mean()):
                setting, job = groups[number].tolist()
                self.private[setting, job] = _OWN_FAULT * middle**2
                centre[rows] = middle
                # Nor do differences between its sets say anything of its partners.
                self.noise[rows] += middle**2
        error = evidence.target - centre
        off = np.abs(error) > _CANNOT_BE * spread
        self.noise[off] += _OWN_FAULT * error[off] ** 2

    def _condition(self, active: np.ndarray) -> None:
        evidence = self.evidence
        index = np.flatnonzero(active)
        order = index[np.argsort(evidence.rank[index], kind="stable")]
        self._used = used = order[: self.most_rows]
        rows, noise, target = evidence.rows.take(used), self.noise, evidence.target
        self._rows = rows
        gram = self._covariance(evidence.members, rows, rows)
        if len(used) == len(order):
            gram[np.diag_indices_from(gram)] += noise[used] + _JITTER
            self._factor = cholesky(gram, lower=True, check_finite=False, overwrite_a=True)
            self._inner = None
            self.weight = self._solve(target[used])
            return
        gram[np.diag_indices_from(gram)] += _JITTER + 1e-6 * np.diag(gram).mean()
        self._factor = cholesky(gram, lower=True, check_finite=False, overwrite_a=True)
        parts = [order[at : at + _TOGETHER] for at in range(0, len(order), _TOGETHER)]
        cross = np.concatenate(
            [self._covariance(evidence.members, rows, evidence.rows.take(part)) for part in parts], 1
        )
        through = solve_triangular(self._factor, cross, lower=True, check_finite=False)
        scaled = through / noise[order]
        self._inner = cholesky(np.eye(len(used)) + scaled @ through.T, lower=True, check_finite=False)
        inner = _solved(self._inner, scaled @ target[order])
        self.weight = solve_triangular(self._factor, inner, lower=True, trans=1, check_finite=False)
        self._through, self._order = through, order

    def _solve(self, values: Floats) -> Floats:
        return _solved(self._factor, values)

    def _left_one_out(self, active: np.ndarray) -> tuple[Floats, Floats]:
        """[active] error of each row had it not been observed, and its standard deviation (Rasmussen and Williams, section 5.4.2)."""
        index = np.flatnonzero(active)
        error, spread = np.zeros(len(index)), np.full(len(index), np.inf)
        position = np.full(len(active), -1)
        position[index] = np.arange(len(index))
        if self._inner is None:
            inverse = solve_triangular(self._factor, np.eye(len(self._used)), lower=True, check_finite=False)
            precision = (inverse**2).sum(0)
            error[position[self._used]] = self.weight / precision
            spread[position[self._used]] = 1.0 / np.sqrt(precision)
            return error, spread
        half = solve_triangular(self._inner, self._through, lower=True, check_finite=False)
        noise, target = self.noise[self._order], self.evidence.target[self._order]
        held = (half**2).sum(0)
        leverage = np.minimum(held / noise, 1 - 1e-6)
        residual = target - half.T @ (half @ (target / noise))
        error[position[self._order]] = residual / (1 - leverage)
        spread[position[self._order]] = np.sqrt(noise / (1 - leverage))
        return error, spread

    def _covariance(self, members: Members, a: Rows, b: Rows, others: Members | None = None) -> Floats:
        others = members if others is None else others
        total = covariance(self.parameters, members, a, others, b)
        for (setting, job), extra in self.private.items():
            left = (members.setting[a.own] == setting) & (members.job[a.own] == job)
            right = (others.setting[b.own] == setting) & (others.job[b.own] == job)
            total += extra * np.outer(left, right)
        return total

    def answer(self, members: Members, rows: Rows, with_variance: bool = True) -> tuple[Floats, Floats]:
        """[R] mean and [R] variance of rows of `members`; variances are 0 unless asked for."""
        mean, spread = np.zeros(len(rows)), np.zeros(len(rows))
        for start in range(0, len(rows), _TOGETHER):
            part = np.arange(start, min(start + _TOGETHER, len(rows)))
            asked = rows.take(part)
            if with_variance:
                spread[part] = variance(self.parameters, members, asked)
            if not len(self.evidence.rows):
                continue
            cross = self._covariance(members, asked, self._rows, self.evidence.members)
            mean[part] = cross @ self.weight
            if with_variance:
                for (setting, job), extra in self.private.items():
                    own = asked.own
                    spread[part] += extra * ((members.setting[own] == setting) & (members.job[own] == job))
                spread[part] -= self._explained(cross.T, None)
        return mean, np.maximum(spread, 0.0)

    def joint(self, members: Members, rows: Rows) -> tuple[Floats, Floats]:
        """[R] mean and [R, R] covariance of rows of `members`."""
        total = self._covariance(members, rows, rows)
        if not len(self.evidence.rows):
            return np.zeros(len(rows)), total
        cross = self._covariance(members, rows, self._rows, self.evidence.members)
        return cross @ self.weight, total - self._explained(cross.T, cross.T)

    def _explained(self, cross: Floats, other: Floats | None) -> Floats:
        """What the evidence takes off the prior variance ([R]) or covariance ([R, R]) of columns `cross` [N, R]."""
        half = solve_triangular(self._factor, cross, lower=True, check_finite=False)
        left = (
            None
            if self._inner is None
            else solve_triangular(self._inner, half, lower=True, check_finite=False)
        )
        if other is None:
            return np.asarray((half**2).sum(0) - (0.0 if left is None else (left**2).sum(0)))
        return np.asarray(half.T @ half - (0.0 if left is None else left.T @ left))

    def table(self, own: Members, partners: Members) -> Floats:
        """[V, W] mean of every member beside every partner, without forming a row for each."""
        if not len(self.evidence.rows):
            return np.zeros((len(own), len(partners)))
        pairs, known = self._rows.pairs(), self.evidence.members
        used, index = np.unique(np.concatenate([pairs.own, pairs.partner]), return_inverse=True)
        weight, half = np.zeros((len(used), len(used))), len(pairs.own)
        np.add.at(weight, (index[:half], index[half:]), self.weight[pairs.row] * pairs.share)
        seen = known.take(used)
        kernel = MemberKernel.of(self.parameters, own, seen)
        beside = kernel if partners is own else MemberKernel.of(self.parameters, partners, seen)
        total = (
            kernel.constant * weight.sum()
            + (kernel.job @ weight.sum(1))[:, None]
            + beside.partner @ weight.sum(0)
        )
        for left, right in zip(kernel.left, beside.right, strict=True):
            total += (left @ weight) @ right.T
        for (setting, job), extra in self.private.items():
            same = (known.setting[self._rows.own] == setting) & (known.job[self._rows.own] == job)
            total[(own.setting == setting) & (own.job == job)] += extra * self.weight[same].sum()
        return np.asarray(total)

    def solo(self, members: Members) -> Floats:
        """[V] mean of the log solo step time's error."""
        if not len(self.evidence.rows) or not self._rows.solo.any():
            return np.zeros(len(members))
        kernel = MemberKernel.of(self.parameters, members, self.evidence.members.take(self._rows.own))
        return np.asarray(kernel.solo @ (self.weight * self._rows.solo))

    def influences(self, members: Members, rows: Rows) -> Floats:
        """[R, N] what each row of the evidence adds to the mean of each of `rows`; with inducing rows, only these do."""
        result = np.zeros((len(rows), len(self.evidence.rows)))
        if len(self.evidence.rows):
            cross = self._covariance(members, rows, self._rows, self.evidence.members)
            result[:, self._used] = cross * self.weight
        return result


def _solved(factor: Floats, values: Floats) -> Floats:
    half = solve_triangular(factor, values, lower=True, check_finite=False)
    return np.asarray(solve_triangular(factor, half, lower=True, trans=1, check_finite=False))
