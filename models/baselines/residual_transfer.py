"""The same job elsewhere, for a predictor that has a model of its own: what it was off by there it is off by here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from datasets.bundle import Bundle, Floats
from models.baselines.columns import group_names
from models.baselines.contract import FoldPredictor


class ResidualTransferPredictor:
    """Answers of another predictor, times the geometric mean of measured over predicted of the same job elsewhere.

    The median of a setting is taken out of the residuals first: that is the setting's and not the job's. Means of few and scattered
    residuals are drawn towards 1 (empirical Bayes; Efron and Morris, JASA 1975).

    Args:
        inner: of a positive quantity; NaN where it has no answer.
        jobs: columns that say which job it is, the coarsest first; each further name refines the one before.
        setting: columns that together are a setting.
    """

    def __init__(self, inner: FoldPredictor, jobs: Sequence[Sequence[str]], setting: Sequence[str]) -> None:
        self.inner, self.jobs, self.setting = inner, tuple(map(tuple, jobs)), tuple(setting)

    def fit(self, train: Bundle, seed: int = 0) -> ResidualTransferPredictor:
        """Fit the other predictor, then learn what it is off by for each job of the measured points."""
        self.inner.fit(train, seed)
        residual = pd.Series(np.log(train.y) - np.log(self.inner.predict(train)))
        known = train.points & np.isfinite(residual.to_numpy())
        rows, residual = train.rows[known], residual[known].reset_index(drop=True)
        residual = residual - residual.groupby(group_names(rows, self.setting)).transform("median")
        self.effects_: list[pd.Series] = []
        for columns in self.jobs:
            names = group_names(rows, columns)
            effect = _shrunken_means(residual, names)
            self.effects_.append(effect)
            residual = residual - effect.reindex(names).to_numpy()
        return self

    def predict(self, test: Bundle) -> Floats:
        """[n] for `test.rows`; the other predictor's answer where the job was not measured elsewhere."""
        total = np.zeros(len(test.rows))
        for columns, effect in zip(self.jobs, self.effects_, strict=True):
            total += effect.reindex(group_names(test.rows, columns)).fillna(0.0).to_numpy()
        return np.asarray(self.inner.predict(test) * np.exp(total))


def _shrunken_means(values: pd.Series, names: np.ndarray) -> pd.Series:
    """Mean of each group, times the share of its variance that is between groups."""
    groups = values.groupby(names)
    mean, count = groups.mean(), groups.size()
    freedom = max(int((count - 1).sum()), 1)
    within = float(((values - groups.transform("mean")) ** 2).sum()) / freedom
    between = max(float(mean.var(ddof=0)) - within * float((1.0 / count).mean()), 0.0)
    if between == 0.0:
        return mean * 0.0
    return mean * (between / (between + within / count))
