"""Tree ensembles on hand-made features: the most common baseline in co-location studies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from datasets.bundle import Bundle
from models.baselines.features import FeatureTable


class TreePredictor:
    """The mean of extremely randomised and gradient-boosted trees, otherwise with scikit-learn's defaults.

    They err differently: the former is more accurate on held-out models, the latter on new pairs of known
    ones.

    Args:
        solo: False: names, batch sizes, precisions, device ("trees with identity"). True: also the solo
            profiles of all members and figures of the device ("trees with solo profiles").
        trees: number of randomised trees.
    """

    def __init__(self, solo: bool = True, trees: int = 200) -> None:
        self.solo = solo
        self.trees = trees

    def fit(self, train: Bundle, seed: int = 0) -> TreePredictor:
        """Learn from the measured points of `train`.

        Raises:
            InputError: no measured points.
        """
        from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor

        points = train.learned_points()
        self.logarithmic_ = train.what.logarithmic
        self.features_ = FeatureTable(self.solo).fit(train)
        x, y = self.features_.transform(train)[points], train.y[points]
        # A column that is never known carries no information, and scikit-learn warns about it.
        self.columns_ = ~np.isnan(x).all(axis=0)
        self.estimators_ = [
            ExtraTreesRegressor(self.trees, random_state=seed),
            HistGradientBoostingRegressor(random_state=seed),
        ]
        for estimator in self.estimators_:
            estimator.fit(x[:, self.columns_], np.log(y) if self.logarithmic_ else y)
        return self

    def predict(self, test: Bundle) -> NDArray[np.float64]:
        """[n] for `test.rows`."""
        x = self.features_.transform(test)[:, self.columns_]
        mean = np.mean([estimator.predict(x) for estimator in self.estimators_], axis=0)
        return np.exp(mean) if self.logarithmic_ else mean
