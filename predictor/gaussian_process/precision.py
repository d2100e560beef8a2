"""Weighted sums over many rows and of their outer products, updated by the rows that changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
from scipy.linalg import cho_factor, solve_triangular

from models.features import Floats

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

# If more than this fraction of the width has changed, nothing is gained by updating leverages, nor, of the rows, by
# updating their sum.
_FEW = 0.25


class Precision:
    """A = I + sum of weight x x^T over N rows x, its Cholesky factor, and the information vector b = sum of weight y x.

    Args:
        rows: [N, W].
        weight: [N] at least 0.
        target: [N] y.
        before: earlier sums over the first of these rows, with other weights and targets. The nearest is updated, which
            saves time without changing results.

    Attributes:
        weight: as given; weighted: [N] weight y.
        total: [W, W] A; factor: its Cholesky factor, of which only the lower triangle counts.
        information: [W] b.
    """

    weight: Floats
    weighted: Floats
    total: Floats
    factor: Floats
    information: Floats

    def __init__(
        self, rows: Floats, weight: Floats, target: Floats, before: Sequence[Before[Precision]] = ()
    ) -> None:
        change = min((Change.since(one, weight) for one in before), key=len, default=None)
        self._sum(rows, weight, target, change)

    def _sum(self, rows: Floats, weight: Floats, target: Floats, change: Change | None) -> None:
        """Add up all rows, or to an earlier sum what has changed, if that is less."""
        self.weight, self.weighted = weight, weight * target
        self.information = (
            rows.T @ self.weighted if change is None else change.information(rows, self.weighted)
        )
        if change is None or 2 * len(change) > len(rows):
            self.total = _weighted(rows, weight) + np.eye(rows.shape[1])
        elif len(change):
            self.total = change.earlier.total + _weighted(*change.products(rows))
        else:
            self.total, self.factor = change.earlier.total, change.earlier.factor
            return
        # Of the transpose, which is the same in the order that LAPACK reads, this takes half the time of `cholesky`.
        self.factor, _ = cho_factor(self.total.T, lower=True, check_finite=False)


class LeveragedPrecision(Precision):
    """The same with the leverage of every row.

    Attributes:
        leverage: [N] x^T A^-1 x.
    """

    def __init__(
        self,
        rows: Floats,
        weight: Floats,
        target: Floats,
        before: Before[LeveragedPrecision] | None = None,
    ) -> None:
        change = None if before is None else Change.since(before, weight)
        self._sum(rows, weight, target, change)
        if before is None or change is None or len(change) >= _FEW * rows.shape[1]:
            self.leverage = self._leverage(rows)
            return
        earlier = before.precision
        self.leverage = np.zeros(len(rows))
        self.leverage[: len(earlier.leverage)] = earlier.leverage
        if len(change):
            # The Woodbury identity (Rasmussen and Williams 2006, equation A.9).
            parts, by = change.products(rows)
            half = solve_triangular(earlier.factor, parts.T, lower=True, check_finite=False)
            through = solve_triangular(earlier.factor, half, lower=True, trans=1, check_finite=False)
            moved = (through.T @ rows.T).T  # two thirds of the time of rows @ through
            self.leverage -= (moved @ np.linalg.inv(np.diag(1.0 / by) + half.T @ half) * moved).sum(1)
        self.leverage[change.fresh] = self._leverage(rows[change.fresh])

    def _leverage(self, rows: Floats) -> Floats:
        half = solve_triangular(self.factor, rows.T, lower=True, check_finite=False)
        return np.asarray((half**2).sum(0))


_Sum = TypeVar("_Sum", bound=Precision, covariant=True)


@dataclass(frozen=True, slots=True)
class Before(Generic[_Sum]):
    """An earlier sum.

    Attributes:
        precision: over the first rows.
        replaced: numbers of rows that were others then; former: [len(replaced), W] these others.
    """

    precision: _Sum
    replaced: Integers | None = None
    former: Floats | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """Outer products to add to an earlier sum.

    Attributes:
        earlier: this sum.
        former, former_by: rows that are no longer there, and minus their weights.
        changed, by: numbers of rows, and what their weights have grown by.
        fresh: numbers of the rows that the earlier sum was not over.
    """

    earlier: Precision
    former: Floats | None
    former_by: Floats
    changed: Integers
    by: Floats
    fresh: Integers

    def __len__(self) -> int:
        return len(self.former_by) + len(self.by)

    @classmethod
    def since(cls, before: Before[Precision], weight: Floats) -> Change:
        """To get from an earlier sum to that with `weight` [N]."""
        known = len(before.precision.weight)
        earlier_weight = np.zeros(len(weight))
        earlier_weight[:known] = before.precision.weight
        former, former_by, fresh = None, np.zeros(0), np.arange(known, len(weight))
        if before.replaced is not None and before.former is not None:
            was = -earlier_weight[before.replaced]
            former, former_by = before.former[was != 0], was[was != 0]
            fresh = np.concatenate([before.replaced, fresh])
            earlier_weight[before.replaced] = 0.0
        changed = np.flatnonzero(weight != earlier_weight)
        return cls(before.precision, former, former_by, changed, (weight - earlier_weight)[changed], fresh)

    def products(self, rows: Floats) -> tuple[Floats, Floats]:
        """[C, W] rows, given all of them now, and [C] what to multiply their outer products by."""
        parts = rows[self.changed]
        if self.former is None:
            return parts, self.by
        return np.concatenate([self.former, parts]), np.concatenate([self.former_by, self.by])

    def information(self, rows: Floats, weighted: Floats) -> Floats:
        """[W] sum of `rows` times `weighted` [N], given all rows now."""
        earlier = self.earlier
        before = np.zeros(len(weighted))
        before[: len(earlier.weighted)] = earlier.weighted
        moved = np.flatnonzero(weighted != before)
        if self.former is not None or len(moved) > _FEW * len(rows):
            return rows.T @ weighted
        return earlier.information + rows[moved].T @ (weighted - before)[moved]


def _weighted(rows: Floats, weight: Floats) -> Floats:
    """Sum of weight x x^T; products of a matrix with its own transpose take half the time of others."""
    fewer = weight < 0
    if not fewer.any():
        scaled = rows * np.sqrt(weight)[:, None]
        return np.asarray(scaled.T @ scaled)
    if fewer.all():
        return -_weighted(rows, -weight)
    return _weighted(rows[~fewer], weight[~fewer]) - _weighted(rows[fewer], -weight[fewer])


def solved(factor: Floats, values: Floats) -> Floats:
    """The solution of A x = values, given A's lower Cholesky factor."""
    half = solve_triangular(factor, values, lower=True, check_finite=False)
    return np.asarray(solve_triangular(factor, half, lower=True, trans=1, check_finite=False))
