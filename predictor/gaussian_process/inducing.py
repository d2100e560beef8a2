"""Which rows stand for all others: those that the rows chosen before them explain least.

Rows are considered in an order of their own, again and again, and chosen if what is unexplained of their prior
variance is above a threshold that falls by half each time. This approximates a pivoted Cholesky factorisation
(Foster et al., JMLR 2009), without its dependence on ties. A random sample of many rows would contain few of a job
observed only a few times, and the rest say little about it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from models.features import Floats
from predictor.gaussian_process.kernel import KernelParameters, Members
from predictor.gaussian_process.prior_variance import PriorVariance
from predictor.gaussian_process.rows import Rows, covariance

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

# The first threshold and what the last one exceeds, as fractions of the prior variance of a pair.
_FIRST, _LAST = 0.47, 0.0035
# Rows considered together.
_BLOCK = 512


@dataclass(frozen=True, slots=True)
class Inducing:
    """The U chosen rows.

    Attributes:
        numbers: [U] in the order of choice.
        factor: [U, U] lower Cholesky factor of their covariance.
        round: [U] in which each was chosen, ascending; rank: [U] its rank, ascending within a round.
        thresholds: of the rounds that took place.
        full: whether no more were wanted, so that the last round ended early.
    """

    numbers: Integers
    factor: Floats
    round: Integers
    rank: Integers
    thresholds: Floats
    full: bool

    def __len__(self) -> int:
        return len(self.numbers)

    def insertion(self, prior: Floats, through: Floats, rank: Integers) -> Start | None:
        """Where the first of further rows would have been chosen, had they been there; None: none of them.

        Args:
            prior: [R] their prior variance.
            through: [R, U] solution x of `factor` x = their covariance with the chosen rows.
            rank: [R] their rank.
        """
        explained = np.concatenate([np.zeros((len(prior), 1)), np.cumsum(through**2, 1)], 1)
        for number, threshold in enumerate(self.thresholds.tolist()):
            start, end = np.searchsorted(self.round, [number, number + 1])
            before = start + np.searchsorted(self.rank[start:end], rank)
            unexplained = prior - explained[np.arange(len(prior)), before]
            in_time = not self.full or number < self.round[-1] or rank < self.rank[-1]
            chosen = (unexplained > threshold) & in_time
            if chosen.any():
                return Start(int(before[chosen].min()), number)
        return None

    @property
    def end(self) -> Start:
        """After all of them."""
        return Start(len(self), len(self.thresholds) - 1)

    def place_of(self, rows: Integers) -> Start | None:
        """Where the first of some rows, by number, was chosen; None: none of them was."""
        places = np.flatnonzero(np.isin(self.numbers, rows))
        return Start(int(places[0]), int(self.round[places[0]])) if len(places) else None


class Start(NamedTuple):
    """From where on rows are to be chosen again: after the first `kept`, in the round of that number."""

    kept: int
    round: int


class Choice:
    """Chooses rows, fewer than wanted if these explain the rest.

    Args:
        rows: N rows of `members`.
        prior: [N] their prior variance.
        rank: [N] numbers that order the rows.
        through: [N, most] receives, in its first U columns, solutions x of `factor` x = covariance of the chosen
            rows with all rows.
        earlier: a choice from fewer rows, of which those before `start` stay, as this one would have made them; their
            columns of `through` are there.
        start: where to go on.
    """

    def __init__(
        self,
        parameters: KernelParameters,
        members: Members,
        rows: Rows,
        prior: Floats,
        rank: Integers,
        through: Floats,
        earlier: Inducing | None = None,
        start: Start = Start(0, 0),
    ) -> None:
        self.parameters, self.members, self.rows, self.rank = parameters, members, rows, rank
        self.through, self.most, count = through, through.shape[1], start.kept
        self.factor, self.numbers = np.zeros((self.most, self.most)), np.zeros(self.most, np.int64)
        order = np.argsort(rank, kind="stable")
        self.blocks = [order[first : first + _BLOCK] for first in range(0, len(order), _BLOCK)]
        # How many of the chosen rows each block's `unexplained` already takes into account.
        self.done = [count] * len(self.blocks)
        self.count, self.first_round, self.rounds = count, start.round, list[int]()
        self.unexplained = prior - (through[:, :count] ** 2).sum(1)
        if earlier is not None:
            self.factor[:count, :count] = earlier.factor[:count, :count]
            self.numbers[:count] = earlier.numbers[:count]
            self.rounds += earlier.round[:count].tolist()

    def made(self) -> Inducing:
        """Choose, once."""
        rounds, thresholds = self.rounds, []
        for number, threshold in enumerate(self._thresholds()):
            before = self.count
            thresholds.append(threshold)
            if number < self.first_round:
                continue
            for block in range(len(self.blocks)):
                if self.count < self.most:
                    self._consider(block, threshold)
            rounds += [number] * (self.count - before)
            if self.count == self.most:
                break
        for block in range(len(self.blocks)):
            self._explain(block)
        numbers = self.numbers[: self.count]
        return Inducing(
            numbers, self.factor[: self.count, : self.count], np.array(rounds, np.int64), self.rank[numbers],
            np.array(thresholds), self.count == self.most,
        )  # fmt: skip

    def _thresholds(self) -> Iterator[float]:
        variance = PriorVariance(self.parameters).beside_one
        threshold = _FIRST * variance
        while threshold > _LAST * variance:
            yield threshold
            threshold /= 2

    def _explain(self, block: int) -> None:
        """Take all rows chosen so far into account."""
        start, end, rows = self.done[block], self.count, self.blocks[block]
        if start == end:
            return
        new = self.rows.take(self.numbers[start:end])
        cross = covariance(self.parameters, self.members, new, self.members, self.rows.take(rows))
        cross -= self.factor[start:end, :start] @ self.through[rows, :start].T
        more = solve_triangular(
            self.factor[start:end, start:end], cross, lower=True, check_finite=False, overwrite_b=True
        )
        self.through[rows, start:end] = more.T
        self.unexplained[rows] -= (more**2).sum(0)
        self.done[block] = end

    def _consider(self, block: int, threshold: float) -> None:
        rows = self.blocks[block]
        if not (self.unexplained[rows] > threshold).any():
            return
        self._explain(block)
        candidates = rows[self.unexplained[rows] > threshold]
        if not len(candidates):
            return
        known, start = self.through[candidates, : self.count], self.count
        among = self.rows.take(candidates)
        left = covariance(self.parameters, self.members, among, self.members, among) - known @ known.T
        chosen, factor = _above(left, threshold, self.most - start)
        end = start + len(chosen)
        self.numbers[start:end] = candidates[chosen]
        self.factor[start:end, :start] = known[chosen]
        self.factor[start:end, start:end] = factor
        self.count = end


def _above(covariance: Floats, threshold: float, most: int) -> tuple[list[int], Floats]:
    """Numbers of at most C of the rows [R, R], whose variance given those taken before is above the threshold.

    Also the lower Cholesky factor [C, C] of these rows.
    """
    left, chosen = np.diag(covariance).copy(), list[int]()
    solved = np.zeros((min(most, len(left)), len(left)))
    for row in range(len(left)):
        if len(chosen) < most and left[row] > threshold:
            before = solved[: len(chosen)]
            solved[len(chosen)] = (covariance[row] - before[:, row] @ before) / np.sqrt(left[row])
            left -= solved[len(chosen)] ** 2
            chosen.append(row)
    return chosen, np.tril(solved[: len(chosen), chosen].T)
