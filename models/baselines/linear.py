"""Non-negative linear models of a few totals, fitted to relative error: how far counting work gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from datasets.bundle import Bundle, Floats
from models.baselines.columns import group_names
from profiling.errors import InputError

# Maps a bundle to a row of totals for each of its rows; NaN if they are unknown.
Totals = Callable[[Bundle], pd.DataFrame]
# Fewest rows for separate weights, and most rows to fit them to, because the linear program grows with the
# rows.
ENOUGH, MANY = 12, 3000


def least_relative_error(x: Floats, y: Floats) -> Floats:
    """Find weights w >= 0 that minimise sum |x w - y| / y, by linear programming.

    Args:
        x: [n, k].
        y: [n], positive.

    Returns:
        [k].
    """
    from scipy.optimize import linprog
    from scipy.sparse import eye_array, hstack

    # Scale every column to 1: the solver treats coefficients under 1e-9 as 0, which bytes in the denominator
    # would give.
    relative = x / y[:, None]
    scale = np.abs(relative).max(axis=0)
    scale[scale == 0] = 1.0
    relative = relative / scale
    count, width = relative.shape
    # relative w + below - above = 1, where below and above are the two signs of the error.
    left = hstack([relative, eye_array(count), -eye_array(count)], format="csc")
    cost = np.r_[np.zeros(width), np.ones(2 * count)]
    solved = linprog(cost, A_eq=left, b_eq=np.ones(count), bounds=(0, None), method="highs")
    if solved.x is None:
        raise InputError("the linear model has no solution", expected="finite totals", got=solved.message)
    weights: Floats = solved.x[:width] / scale
    return weights


class LinearPredictor:
    """Separate weights for each setting.

    A setting never seen takes the weights of all settings that agree with it in all but the first column, or
    the first two, and so on.

    Args:
        totals: the regressors of a row, such as multiply-adds and activations of the whole batch; those known
            for no training row are left out.
        setting: columns that make up a setting, the one that matters least to the weights first.
        constants: columns whose combinations of values each get a constant; without any, there is one
            constant.
    """

    def __init__(self, totals: Totals, setting: Sequence[str] = (), constants: Sequence[str] = ()) -> None:
        self.totals, self.setting, self.constants = totals, tuple(setting), tuple(constants)

    def fit(self, train: Bundle, seed: int = 0) -> LinearPredictor:  # noqa: ARG002
        """Keep the measured points of `train` with known totals.

        Weights are fitted when a setting is queried.

        Args:
            train: rows with their targets.
            seed: not used.

        Raises:
            InputError: no such points.
        """
        self.levels_ = sorted(set(group_names(train.rows, self.constants)))
        totals = self.totals(train)
        self.known_ = [name for name in totals if totals[name].notna().any()]
        x = self._regressors(train, totals)
        usable = train.points & ~np.isnan(x).any(axis=1)
        if not self.known_ or not usable.any():
            raise InputError(
                "nothing to learn from", expected="measured rows whose totals are known", got="none"
            )
        self.x_, self.y_, self.rows_ = x[usable], train.y[usable], train.rows[usable]
        self.weights_: dict[tuple[int, str], Floats | None] = {}
        return self

    def predict(self, test: Bundle) -> Floats:
        """[n] for `test.rows`; NaN if the totals are unknown."""
        x = self._regressors(test, self.totals(test))
        result = np.full(len(x), np.nan)
        waiting = np.asarray(~np.isnan(x).any(axis=1))
        for dropped in range(len(self.setting) + 1):
            names = group_names(test.rows, self.setting[dropped:])
            for name in np.unique(names[waiting].astype(str)):
                weights = self._weights(dropped, name)
                if weights is not None:
                    here = waiting & (names == name)
                    result[here], waiting[here] = x[here] @ weights, False
        # Without any work there is no positive prediction.
        return np.where(result > 0, result, np.nan)

    def _weights(self, dropped: int, name: str) -> Floats | None:
        """Weights of the rows that agree in the setting without its first columns.

        None if there are too few.
        """
        if (dropped, name) not in self.weights_:
            rows = np.flatnonzero(group_names(self.rows_, self.setting[dropped:]) == name)
            enough = len(rows) >= ENOUGH or dropped == len(self.setting)
            rows = rows[:: -(-len(rows) // MANY)] if len(rows) else rows
            self.weights_[dropped, name] = (
                least_relative_error(self.x_[rows], self.y_[rows]) if enough else None
            )
        return self.weights_[dropped, name]

    def _regressors(self, bundle: Bundle, totals: pd.DataFrame) -> Floats:
        values = totals[self.known_].to_numpy(dtype=np.float64)
        if not self.constants:
            return np.column_stack([values, np.ones(len(values))])
        levels = group_names(bundle.rows, self.constants)
        own = (levels[:, None] == np.array(self.levels_, dtype=object)[None, :]).astype(np.float64)
        # A value never seen takes the mean of the fitted constants.
        own[~own.any(axis=1)] = 1.0 / len(self.levels_)
        return np.column_stack([values, own])
