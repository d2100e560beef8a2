"""What `PairAnswers` keeps of pairs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from models.features import Floats

RowsOfPairs = NDArray[np.float32]
FIRST = 256
"""Rows allocated at first."""
NOBODY = 0
"""An all-zero row that pads members with fewer partners than others of the call."""


class CachedPairs:
    """Rows of pairs. They grow by reallocation, so a reader that holds `added` can go on reading it.

    Args:
        width, used: widths of the parts of `process`; before: of those of the prior's process.

    Attributes:
        half: [capacity, width] vectors that give the explained covariance; before: [capacity, before] the same
            before observations; added: [capacity, used].
        place: row of each pair.
        mean, prior, variance: [P] mean of each pair and its variances, given the solo step time; absorbed: [P] by how
            much an error of that moves the mean.
        kept: [P] part of the covariance with other pairs that is left of a confirmed pair; 1 of others.
        between: [P] prior covariance of any member beside `own` with the same member beside `partner`.
        covariance: of (own, partner, other partner): the covariance of own beside the one with own beside the
            other, before and after observations.
    """

    def __init__(self, width: int, before: int, used: int) -> None:
        self.half: RowsOfPairs = np.zeros((FIRST, width), np.float32)
        self.before: RowsOfPairs = np.zeros((FIRST, before), np.float32)
        self.added: RowsOfPairs = np.zeros((FIRST, used), np.float32)
        self.place: dict[tuple[int, int], int] = {}
        self.mean, self.prior, self.variance, self.absorbed, self.kept, self.between = (
            [0.0] for _ in range(6)
        )
        self.covariance: dict[tuple[int, int, int], tuple[float, float]] = {}

    def add(
        self,
        pairs: Sequence[tuple[int, int]],
        half: Floats,
        before: Floats,
        added: Floats,
        mean: Floats,
        prior: Floats,
        variance: Floats,
        absorbed: Floats,
        kept: Floats,
        between: Floats,
    ) -> None:
        start = len(self.mean)
        end = start + len(pairs)
        if end > len(self.half):
            capacity = max(end, 2 * len(self.half))
            self.half, self.before, self.added = (
                _grown(rows, capacity) for rows in (self.half, self.before, self.added)
            )
        self.half[start:end], self.before[start:end], self.added[start:end] = half, before, added
        self.mean += mean.tolist()
        self.prior += prior.tolist()
        self.variance += variance.tolist()
        self.absorbed += absorbed.tolist()
        self.kept += kept.tolist()
        self.between += between.tolist()
        self.place.update(zip(pairs, range(start, end), strict=True))


def _grown(rows: RowsOfPairs, capacity: int) -> RowsOfPairs:
    larger = np.zeros((capacity, rows.shape[1]), rows.dtype)
    larger[: len(rows)] = rows
    return larger
