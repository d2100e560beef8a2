"""Transfer of residuals: corrects a predictor by its error on the same job elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from datasets.bundle import Bundle, Floats
from models.baselines.columns import group_names
from models.baselines.contract import FoldPredictor


class ResidualTransferPredictor:
    """Predictions of another model, corrected by its error on the same job elsewhere.

    The correction is the geometric mean of measured over predicted. The median residual of each setting is
    subtracted first, because it belongs to the setting, not to the job. Means of few, scattered residuals are
    shrunk towards 1 (empirical Bayes; Efron and Morris, JASA 1975).

    Args:
        inner: predictor of a positive quantity; NaN if it has no answer.
        jobs: lists of columns that identify a job, the coarsest first; each further list refines the one
            before.
        setting: columns that make up a setting.
    """

    def __init__(self, inner: FoldPredictor, jobs: Sequence[Sequence[str]], setting: Sequence[str]) -> None:
        self.inner, self.jobs, self.setting = inner, tuple(map(tuple, jobs)), tuple(setting)

    def fit(self, train: Bundle, seed: int = 0) -> ResidualTransferPredictor:
        """Fit the inner predictor, then learn its error for each job of the measured points."""
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
        """[n] for `test.rows`; the inner predictor's answer if the job was not measured elsewhere."""
        total = np.zeros(len(test.rows))
        for columns, effect in zip(self.jobs, self.effects_, strict=True):
            total += effect.reindex(group_names(test.rows, columns)).fillna(0.0).to_numpy()
        return np.asarray(self.inner.predict(test) * np.exp(total))


def _shrunken_means(values: pd.Series, names: np.ndarray) -> pd.Series:
    """Mean of each group, times the between-group share of its variance."""
    groups = values.groupby(names)
    mean, count = groups.mean(), groups.size()
    freedom = max(int((count - 1).sum()), 1)
    within = float(((values - groups.transform("mean")) ** 2).sum()) / freedom
    between = max(float(mean.var(ddof=0)) - within * float((1.0 / count).mean()), 0.0)
    if between == 0.0:
        return mean * 0.0
    return mean * (between / (between + within / count))
