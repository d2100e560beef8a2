from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from datasets.bundle import Bundle, Floats
from models.baselines.averaged import AveragedPredictor


class Says:
    """Always predicts the same."""

    def __init__(self, *values: float) -> None:
        self.values, self.seeds = values, list[int]()

    def fit(self, _train: Bundle, seed: int) -> Says:
        self.seeds.append(seed)
        return self

    def predict(self, _test: Bundle) -> Floats:
        return np.array(self.values)


def test_geometric_mean_of_the_available_predictions() -> None:
    bundle = cast(Bundle, None)
    parts = Says(1.0, 2.0, np.nan, np.nan), Says(4.0, np.nan, 3.0, np.nan)
    predictor = AveragedPredictor(parts).fit(bundle, seed=3)
    assert predictor.predict(bundle) == pytest.approx([2.0, 2.0, 3.0, np.nan], nan_ok=True)
    assert [part.seeds for part in parts] == [[3], [3]]
