"""Rows of the process: a member beside its partners, or alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from models.features import Floats
from predictor.examples.examples import Integers
from predictor.learning.kernel import KernelParameters, MemberKernel, Members


@dataclass(frozen=True, slots=True)
class Rows:
    """N members in their sets.

    Attributes:
        own: [N] number of the member.
        partners: [N, M] numbers of those beside it, -1 where there are fewer.
        solo: [N] how much an error of the predicted solo step time counts (on the row's scale): 0 where it was measured.
    """

    own: Integers
    partners: Integers
    solo: Floats

    def __len__(self) -> int:
        return len(self.own)

    def take(self, index: Integers) -> Rows:
        return Rows(self.own[index], self.partners[index], self.solo[index])

    def joined(self, others: Rows) -> Rows:
        width = max(self.partners.shape[1], others.partners.shape[1])
        both = [
            np.pad(p, ((0, 0), (0, width - p.shape[1])), constant_values=-1)
            for p in (self.partners, others.partners)
        ]
        return Rows(
            np.concatenate([self.own, others.own]),
            np.concatenate(both),
            np.concatenate([self.solo, others.solo]),
        )

    def pairs(self) -> Pairs:
        """Each member with each of its partners."""
        row, column = np.nonzero(self.partners >= 0)
        count = np.bincount(row, minlength=len(self))
        return Pairs(row, self.own[row], self.partners[row, column], 1.0 / count[row], len(self))


@dataclass(frozen=True, slots=True)
class Pairs:
    """P pairs that rows are the mean of: number of the row, member, partner, and share of the row."""

    row: Integers
    own: Integers
    partner: Integers
    share: Floats
    rows: int

    def summed(self, values: Floats) -> Floats:
        """[rows, ...] from [P, ...]: the mean over partners, 0 for a member alone."""
        if len(self.row) == self.rows:  # sets of two: a pair is a row
            return values
        pick = csr_array((self.share, (self.row, np.arange(len(self.row)))), shape=(self.rows, len(self.row)))
        return np.asarray(pick @ values)


def covariance(parameters: KernelParameters, members: Members, a: Rows, others: Members, b: Rows) -> Floats:
    """[len(a), len(b)] prior covariance of rows `a` of `members` and rows `b` of `others`."""
    kernel = MemberKernel.of(parameters, members, others)
    first, second = a.pairs(), b.pairs()
    pairs = kernel.pairs(first.own, first.partner, second.own, second.partner)
    total = second.summed(first.summed(pairs).T).T
    if a.solo.any() and b.solo.any():
        total = total + np.outer(a.solo, b.solo) * kernel.solo[np.ix_(a.own, b.own)]
    return total


def variance(parameters: KernelParameters, members: Members, rows: Rows) -> Floats:
    """[len(rows)] prior variance of rows."""
    kernel = MemberKernel.of(parameters, members, members)
    pairs = rows.pairs()
    result = rows.solo**2 * kernel.solo[rows.own, rows.own]
    if len(pairs.row) == len(rows):
        return result + kernel.one_by_one(pairs.own, pairs.partner, pairs.own, pairs.partner)
    for row in range(len(rows)):
        own = pairs.row == row
        i, j, share = pairs.own[own], pairs.partner[own], pairs.share[own]
        result[row] += share @ kernel.pairs(i, j, i, j) @ share
    return result
