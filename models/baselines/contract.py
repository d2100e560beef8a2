"""What a predictor that takes part in a protocol offers; predictors made of others ask theirs by it."""

from __future__ import annotations

from typing import Any, Protocol

from datasets.bundle import Bundle, Floats


class FoldPredictor(Protocol):
    """Fitted once, asked once."""

    def fit(self, train: Bundle, seed: int) -> Any:
        """Learn from `train`, which holds the targets."""

    def predict(self, test: Bundle) -> Floats:
        """[n] one value for each of `test.rows`, in the unit of the target; NaN where there is no answer."""
