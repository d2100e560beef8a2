"""Rows of the process: a member beside its partners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array

from models.features import Floats
from predictor.gaussian_process.kernel import KernelParameters, MemberKernel, Members
from predictor.gaussian_process.prior_variance import PriorVariance
from predictor.padding import equally_wide

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

# Pairs of members compared at a time, which takes some hundred bytes each.
_MOST_COMPARED = 2**22


@dataclass(frozen=True, slots=True)
class Rows:
    """N members in their sets.

    Attributes:
        own: [N] number of the member.
        partners: [N, M] numbers of those beside it, -1 where there are fewer.
    """

    own: Integers
    partners: Integers

    def __len__(self) -> int:
        return len(self.own)

    def take(self, index: Integers) -> Rows:
        return Rows(self.own[index], self.partners[index])

    def joined(self, others: Rows) -> Rows:
        both = equally_wide(self.partners, others.partners)
        return Rows(np.concatenate([self.own, others.own]), np.concatenate(both))

    def pairs(self, members: Members) -> Pairs:
        """Split rows of `members` into pairs of a member and one partner."""
        row, column = np.nonzero(self.partners >= 0)
        partner = self.partners[row, column]
        occupancy = members.occupancy[partner]
        total = np.bincount(row, occupancy, minlength=len(self))
        return Pairs(row, self.own[row], partner, occupancy / total[row])


@dataclass(frozen=True, slots=True)
class Pairs:
    """P pairs, of which rows are the mean: number of the row, ascending, member, partner, and share of the row."""

    row: Integers
    own: Integers
    partner: Integers
    share: Floats

    def over_partners(self, rows: int, members: int) -> csr_array:
        """[rows, members] that takes the mean over each row's partners; zeros for a member alone."""
        # Compressed by hand: from coordinates it takes fifty times as long.
        ends = np.cumsum(np.bincount(self.row, minlength=rows))
        return csr_array((self.share, self.partner, np.append(0, ends)), shape=(rows, members))


def partners_of(own: Integers, set_index: Integers) -> Integers:
    """[T, M] members of the same set beside each row, -1 where there are fewer.

    Rows of a set must be adjacent.
    """
    start = np.searchsorted(set_index, set_index)
    size = np.bincount(set_index)[set_index] if len(set_index) else np.zeros(0, np.int64)
    most = int(size.max(initial=1))
    result = np.full((len(own), max(1, most - 1)), -1, dtype=np.int64)
    place = np.arange(len(own)) - start
    for offset in range(1, most):
        present = offset < size
        other = start + (place + offset) % np.maximum(size, 1)
        result[present, offset - 1] = own[other[present]]
    return result


def covariance(parameters: KernelParameters, members: Members, a: Rows, others: Members, b: Rows) -> Floats:
    """[len(a), len(b)] prior covariance of rows `a` of `members` and rows `b` of `others`."""
    (members, a), (others, b) = _used(members, a), _used(others, b)
    if len(members) * len(others) > _MOST_COMPARED and max(len(a), len(b)) > 1:
        axis = int(len(b) > len(a))
        halves = np.array_split(np.arange(max(len(a), len(b))), 2)
        parts = [(a, b.take(half)) if axis else (a.take(half), b) for half in halves]
        return np.concatenate(
            [covariance(parameters, members, one, others, other) for one, other in parts], axis
        )
    kernel = MemberKernel.of(parameters, members, others)
    # All pairs of a row have the same member, so only what depends on partners is averaged.
    first = a.pairs(members).over_partners(len(a), len(members))
    second = b.pairs(others).over_partners(len(b), len(others))
    own = np.ix_(a.own, b.own)
    total = kernel.job[own] + kernel.constant
    for left, right in zip(kernel.left, kernel.right, strict=True):
        total += left[own] * _averaged(right, first, second)
    total += _averaged(kernel.partner, first, second)
    total[(a.partners < 0).all(1)] = 0.0
    total[:, (b.partners < 0).all(1)] = 0.0
    return total


def _averaged(values: Floats, first: csr_array, second: csr_array) -> Floats:
    """[V, W] values of members and others, averaged over the partners of rows of either."""
    return np.asarray((second @ (first @ values).T).T)


def variance(parameters: KernelParameters, members: Members, rows: Rows) -> Floats:
    """[len(rows)] prior variance of rows."""
    return PriorVariance(parameters).beside(members, rows.partners)


def _used(members: Members, rows: Rows) -> tuple[Members, Rows]:
    """Drop members that no row names, so that the kernel is no larger than necessary."""
    named = np.concatenate([rows.own, rows.partners[rows.partners >= 0]])
    used = np.unique(named)
    if len(used) == len(members):
        return members, rows
    number = np.full(len(members), -1, dtype=np.int64)
    number[used] = np.arange(len(used))
    partners = np.where(rows.partners >= 0, number[rows.partners], -1)
    return members.take(used), Rows(number[rows.own], partners)
