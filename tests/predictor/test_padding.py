"""Sets of unequal size as arrays."""

from __future__ import annotations

import numpy as np

from predictor.padding import equally_wide, padded


def test_padded() -> None:
    assert padded([[1], [2, 3, 4], []]).tolist() == [[1, -1, -1], [2, 3, 4], [-1, -1, -1]]
    assert padded([]).shape == (0, 1)


def test_equally_wide() -> None:
    narrow, wide = equally_wide(np.array([[1], [2]]), np.array([[3, 4]]))
    assert narrow.tolist() == [[1, -1], [2, -1]]
    assert wide.tolist() == [[3, 4]]
