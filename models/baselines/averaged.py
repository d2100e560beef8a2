"""Averages several predictors of one quantity."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from datasets.bundle import Bundle, Floats
from models.baselines.contract import FoldPredictor


class AveragedPredictor:
    """The geometric mean of the available answers, so that over- and underestimates cancel.

    Args:
        parts: predictors of positive quantities; NaN if they have no answer.
    """

    def __init__(self, parts: Sequence[FoldPredictor]) -> None:
        self.parts = tuple(parts)

    def fit(self, train: Bundle, seed: int = 0) -> AveragedPredictor:
        """Fit every part."""
        for part in self.parts:
            part.fit(train, seed)
        return self

    def predict(self, test: Bundle) -> Floats:
        """[n] for `test.rows`; NaN where no part has an answer."""
        answers = np.log([part.predict(test) for part in self.parts])
        known = np.isfinite(answers)
        total = np.where(known, answers, 0.0).sum(axis=0)
        count = known.sum(axis=0)
        return np.where(count > 0, np.exp(total / np.maximum(count, 1)), np.nan)
