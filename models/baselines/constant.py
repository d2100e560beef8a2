"""The mean of the measurements, which is also the reference of R2."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from datasets.bundle import Bundle


class ConstantPredictor:
    """Predicts one number: the mean of the training targets.

    It is the geometric mean for targets that span decades, such as step times.
    """

    def fit(self, train: Bundle, seed: int = 0) -> ConstantPredictor:  # noqa: ARG002
        """Learn from the measured points of `train`; `seed` is not used.

        Raises:
            InputError: no measured points.
        """
        y = train.y[train.learned_points()]
        of_rows = train.what.logarithmic and not train.what.of_set
        self.value_ = float(np.exp(np.log(y).mean()) if of_rows else y.mean())
        return self

    def predict(self, test: Bundle) -> NDArray[np.float64]:
        """[n] for `test.rows`."""
        return np.full(len(test.rows), self.value_)
