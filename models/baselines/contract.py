"""Interface of predictors in protocols, and of the parts of composite predictors."""

from __future__ import annotations

from typing import Any, Protocol

from datasets.bundle import Bundle, Floats


class FoldPredictor(Protocol):
    """Fitted once, queried once."""

    def fit(self, train: Bundle, seed: int) -> Any:
        """Learn from `train`, which holds the targets."""

    def predict(self, test: Bundle) -> Floats:
        """[n] one value per row of `test.rows`, in the unit of the target; NaN if there is no answer."""
