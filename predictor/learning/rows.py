"""Rows of the process: a member beside its partners, or alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array

from models.features import Floats
from predictor.learning.kernel import KernelParameters, MemberKernel, Members, kernel_of_itself
from predictor.learning.prior_variance import PriorVariance

if TYPE_CHECKING:
    from predictor.examples.examples import Integers


@dataclass(frozen=True, slots=True)
class Rows:
    """N members in their sets.

    Attributes:
        own: [N] number of the member.
        partners: [N, M] numbers of those beside it, -1 where there are fewer.
        solo: [N] weight of an error of the predicted solo step time (on the row's scale); 0 if it was
            measured.
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
        """Split rows into pairs of a member and one partner."""
        row, column = np.nonzero(self.partners >= 0)
        count = np.bincount(row, minlength=len(self))
        return Pairs(row, self.own[row], self.partners[row, column], 1.0 / count[row], len(self))


@dataclass(frozen=True, slots=True)
class Pairs:
    """P pairs, of which rows are the mean: number of the row, member, partner, and share of the row."""

    row: Integers
    own: Integers
    partner: Integers
    share: Floats
    rows: int

    @property
    def plain(self) -> bool:
        """Whether every row is one pair, as in sets of two."""
        return np.array_equal(self.row, np.arange(self.rows))

    def summed(self, values: Floats) -> Floats:
        """[rows, ...] from [P, ...]: the mean over partners, 0 for a member alone."""
        if self.plain:
            return values
        pick = csr_array((self.share, (self.row, np.arange(len(self.row)))), shape=(self.rows, len(self.row)))
        return np.asarray(pick @ values)


def covariance(parameters: KernelParameters, members: Members, a: Rows, others: Members, b: Rows) -> Floats:
    """[len(a), len(b)] prior covariance of rows `a` of `members` and rows `b` of `others`."""
    (members, a), (others, b) = _used(members, a), _used(others, b)
    kernel = MemberKernel.of(parameters, members, others)
    first, second = a.pairs(), b.pairs()
    pairs = kernel.pairs(first.own, first.partner, second.own, second.partner)
    total = second.summed(first.summed(pairs).T).T
    if a.solo.any() and b.solo.any():
        total = total + np.outer(a.solo, b.solo) * kernel.solo[np.ix_(a.own, b.own)]
    return total


def variance(parameters: KernelParameters, members: Members, rows: Rows) -> Floats:
    """[len(rows)] prior variance of rows."""
    alone = rows.solo**2 * kernel_of_itself(parameters).solo[0, 0]
    return np.asarray(alone + PriorVariance(parameters).beside(members, rows.partners))


def _used(members: Members, rows: Rows) -> tuple[Members, Rows]:
    """Drop members that no row names, so that the kernel is no larger than necessary."""
    named = np.concatenate([rows.own, rows.partners[rows.partners >= 0]])
    used = np.unique(named)
    if len(used) == len(members):
        return members, rows
    number = np.full(len(members), -1, dtype=np.int64)
    number[used] = np.arange(len(used))
    partners = np.where(rows.partners >= 0, number[rows.partners], -1)
    return members.take(used), Rows(number[rows.own], partners, rows.solo)
