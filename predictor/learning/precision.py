"""Weighted sums of outer products over many rows, updated by the rows that changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from models.features import Floats

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

# If more than this fraction of the width has changed, nothing is gained by an update.
_FEW = 0.25


class Precision:
    """A = I + sum of weight x x^T over N rows x, its Cholesky factor, and the leverage of every row.

    Args:
        rows: [N, W].
        weight: [N] at least 0.
        earlier: the same of the first rows, which may have had other weights. Saves time without changing
            results.
        replaced: numbers of rows that were others in `earlier`.
        former: [len(replaced), W] these others.

    Attributes:
        weight: as given.
        total: [W, W] A; factor: its lower Cholesky factor.
        leverage: [N] x^T A^-1 x.
    """

    def __init__(
        self,
        rows: Floats,
        weight: Floats,
        earlier: Precision | None = None,
        replaced: Integers | None = None,
        former: Floats | None = None,
    ) -> None:
        self.weight, width = weight, rows.shape[1]
        if earlier is not None:
            known = len(earlier.weight)
            before = np.zeros(len(rows))
            before[:known] = earlier.weight
            parts, change, fresh = np.zeros((0, width)), np.zeros(0), np.arange(known, len(rows))
            if replaced is not None and former is not None:
                parts, change, fresh = former, -before[replaced], np.concatenate([replaced, fresh])
                before[replaced] = 0.0
            changed = np.flatnonzero(weight != before)
            if len(changed) + len(change) < _FEW * width:
                parts = np.concatenate([parts, rows[changed]])
                change = np.concatenate([change, (weight - before)[changed]])
                self._update(rows, earlier, parts[change != 0], change[change != 0], fresh)
                return
        self.total = _weighted(rows, weight) + np.eye(width)
        self.factor = _factor(self.total)
        self.leverage = self._leverage(rows)

    def _update(
        self, rows: Floats, earlier: Precision, parts: Floats, change: Floats, fresh: Integers
    ) -> None:
        """Add `change` times the outer products of `parts`; `earlier` did not have the rows numbered
        `fresh`."""
        self.total = earlier.total + _weighted(parts, change)
        self.factor = _factor(self.total)
        self.leverage = np.zeros(len(rows))
        self.leverage[: len(earlier.leverage)] = earlier.leverage
        if len(parts):
            # The Woodbury identity (Rasmussen and Williams 2006, equation A.9).
            half = solve_triangular(earlier.factor, parts.T, lower=True, check_finite=False)
            through = solve_triangular(earlier.factor, half, lower=True, trans=1, check_finite=False)
            moved = rows @ through
            self.leverage -= (moved @ np.linalg.inv(np.diag(1.0 / change) + half.T @ half) * moved).sum(1)
        self.leverage[fresh] = self._leverage(rows[fresh])

    def _leverage(self, rows: Floats) -> Floats:
        half = solve_triangular(self.factor, rows.T, lower=True, check_finite=False)
        return np.asarray((half**2).sum(0))

    def factor_with(self, rows: Floats, weight: Floats) -> Floats:
        """[W, W] lower Cholesky factor of A with other weights of the same rows."""
        changed = np.flatnonzero(weight != self.weight)
        if not len(changed):
            return self.factor
        return _factor(self.total + _weighted(rows[changed], (weight - self.weight)[changed]))


def _weighted(rows: Floats, weight: Floats) -> Floats:
    return (rows * weight[:, None]).T @ rows


def _factor(total: Floats) -> Floats:
    return np.asarray(cholesky(total, lower=True, check_finite=False))
