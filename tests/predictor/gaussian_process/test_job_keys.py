"""Places of numbers among sorted ones."""

from __future__ import annotations

import numpy as np

from predictor.gaussian_process.job_keys import places_among


def test_places_of_numbers_of_any_shape() -> None:
    keys = np.array([2, 5, 9])
    assert places_among(keys, np.array([[5, 1], [9, 10]])).tolist() == [[1, -1], [2, -1]]
    assert places_among(keys[:0], np.array([[5], [1]])).tolist() == [[-1], [-1]]
