"""Tree ensembles on a few totals of a network and on how it is run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from datasets.bundle import Bundle, Floats
from models.baselines.features import device_numbers, one_hot
from models.baselines.linear import Totals
from profiling.errors import InputError


class SummaryTreePredictor:
    """The mean of randomised and boosted trees, on the logarithm of the target over the first total.

    Trees do not extrapolate, but relative to its work, a network larger than any in training is ordinary.

    Args:
        totals: the features of a row; the target is taken relative to the first.
        setting: columns whose values are features as well.
        trees: number of randomised trees.
    """

    def __init__(self, totals: Totals, setting: Sequence[str] = (), trees: int = 200) -> None:
        self.totals, self.setting, self.trees = totals, tuple(setting), trees

    def fit(self, train: Bundle, seed: int = 0) -> SummaryTreePredictor:
        """Learn from the measured points of `train` with known totals.

        Raises:
            InputError: no such points.
        """
        from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor

        totals = self.totals(train)
        self.known_ = [name for name in totals if totals[name].notna().any()]
        usable = train.points & totals[self.known_].notna().all(axis=1).to_numpy()
        if not self.known_ or not usable.any():
            raise InputError(
                "nothing to learn from", expected="measured rows whose totals are known", got="none"
            )
        self.values_ = {name: sorted(set(train.rows[name].astype(str))) for name in self.setting}
        x, scale = self._features(train, totals)
        target = np.log(train.y[usable]) - scale[usable]
        self.columns_ = ~np.isnan(x[usable]).all(axis=0)
        self.estimators_ = [
            ExtraTreesRegressor(self.trees, min_samples_leaf=2, random_state=seed),
            HistGradientBoostingRegressor(random_state=seed),
        ]
        for estimator in self.estimators_:
            estimator.fit(x[usable][:, self.columns_], target)
        return self

    def predict(self, test: Bundle) -> Floats:
        """[n] for `test.rows`; NaN if a total is unknown."""
        totals = self.totals(test)
        usable = totals[self.known_].notna().all(axis=1).to_numpy()
        x, scale = self._features(test, totals)
        result = np.full(len(x), np.nan)
        if usable.any():
            answers = [e.predict(x[usable][:, self.columns_]) for e in self.estimators_]
            result[usable] = np.exp(np.mean(answers, axis=0) + scale[usable])
        return result

    def _features(self, bundle: Bundle, totals: pd.DataFrame) -> tuple[Floats, Floats]:
        """[n, features] and [n] logarithm of the first total."""
        values = np.log(np.maximum(totals[self.known_].to_numpy(dtype=np.float64), 1.0))
        rows = bundle.rows
        blocks = [values, values[:, 1:] - values[:, :1]]
        if "batch_size" in rows:
            blocks.append(np.log2(rows["batch_size"].to_numpy(dtype=np.float64, na_value=np.nan))[:, None])
        blocks += [one_hot(rows[name].astype(str), self.values_[name]) for name in self.setting]
        blocks.append(device_numbers(rows["device"]))
        return np.hstack(blocks), values[:, 0]
