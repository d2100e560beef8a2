"""Sets of unequal size as arrays: -1 where one has fewer members."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def padded(sets: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """[S, M] numbers of the members of sets, with -1 after those of smaller ones."""
    most = max((len(s) for s in sets), default=1)
    rows = np.full((len(sets), most), -1)
    for index, members in enumerate(sets):
        rows[index, : len(members)] = members
    return rows


def equally_wide(*sets: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Arrays [N, M] of numbers with -1 appended to each row, up to the largest M."""
    width = max(numbers.shape[1] for numbers in sets)
    return [np.pad(numbers, ((0, 0), (0, width - numbers.shape[1])), constant_values=-1) for numbers in sets]
