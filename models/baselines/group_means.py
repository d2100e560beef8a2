"""The mean of measurements under the same conditions.

These are, for instance, other models at the same batch size, share or number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from datasets.bundle import Bundle, Floats
from models.baselines.columns import group_names
from profiling.errors import InputError


class GroupMeanPredictor:
    """The mean of the training rows that agree in some columns; if none agree in all, in the first ones only.

    Args:
        columns: columns that must agree, the most informative first.
        reference: known quantity relative to which the target is averaged: [n] for the rows of a bundle; 1 by
            default.
        geometric: whether to average logarithms.
    """

    def __init__(
        self,
        columns: Sequence[str],
        reference: Callable[[Bundle], Floats] | None = None,
        geometric: bool = False,
    ) -> None:
        self.columns, self.reference, self.geometric = tuple(columns), reference, geometric

    def fit(self, train: Bundle, seed: int = 0) -> GroupMeanPredictor:  # noqa: ARG002
        """Learn from the measured points of `train`; `seed` is not used.

        Raises:
            InputError: no measured points.
        """
        values = train.y / self._reference(train)
        usable = train.points & np.isfinite(values)
        if not usable.any():
            raise InputError("nothing to learn from", expected="rows with a measured target", got="none")
        learned = np.log(values[usable]) if self.geometric else values[usable]
        rows = train.rows[usable]
        self.means_: list[dict[str, float]] = []
        for count in range(len(self.columns), -1, -1):
            names = group_names(rows, self.columns[:count])
            groups, codes = np.unique(names.astype(str), return_inverse=True)
            means = np.bincount(codes, learned) / np.bincount(codes)
            self.means_.append(dict(zip(groups, np.exp(means) if self.geometric else means, strict=True)))
        return self

    def predict(self, test: Bundle) -> Floats:
        """[n] for `test.rows`; NaN if the reference is unknown."""
        result = np.full(len(test.rows), np.nan)
        for count, means in zip(range(len(self.columns), -1, -1), self.means_, strict=True):
            names = group_names(test.rows, self.columns[:count])
            open_ = np.isnan(result)
            result[open_] = [means.get(str(name), np.nan) for name in names[open_]]
        return result * self._reference(test)

    def _reference(self, bundle: Bundle) -> Floats:
        return np.ones(len(bundle.rows)) if self.reference is None else self.reference(bundle)


class FormulaPredictor:
    """A formula without fitted parameters.

    Args:
        formula: [n] predictions for the rows of a bundle.
    """

    def __init__(self, formula: Callable[[Bundle], Floats]) -> None:
        self.formula = formula

    def fit(self, train: Bundle, seed: int = 0) -> FormulaPredictor:  # noqa: ARG002
        """Nothing to learn."""
        return self

    def predict(self, test: Bundle) -> Floats:
        """[n] for `test.rows`."""
        return self.formula(test)
