from __future__ import annotations

import numpy as np
import pytest

from models.features import Floats
from predictor.answering.repeated import FEWEST, each_once
from predictor.examples.examples import Integers


def of_set(rows: Integers) -> Floats:
    """A number per member that depends on it and the others, not on their order; 0 where there is none."""
    present = rows >= 0
    return np.asarray(np.where(present, rows + (present * (rows + 1.0) ** 2).sum(1, keepdims=True), 0.0))


class Counted:
    """Predicts like `of_set` and counts the sets it is asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, rows: Integers) -> Floats:
        self.asked += len(rows)
        # Members precede padding, as all callers arrange them.
        assert ((rows >= 0).astype(int)[:, :-1] >= (rows >= 0).astype(int)[:, 1:]).all()
        return of_set(rows)


def some_rows(jobs: int, size: int) -> Integers:
    rng = np.random.default_rng(jobs + size)
    rows = rng.integers(0, jobs, (3 * FEWEST, size))
    members = rng.integers(1, size + 1, len(rows))
    return np.where(np.arange(size) < members[:, None], rows, -1)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_equal_sets_are_predicted_once(size: int) -> None:
    rows, answer = some_rows(6, size), Counted()
    assert np.array_equal(each_once(answer, rows, 6), of_set(rows))
    different = {tuple(sorted(row)) for row in rows.tolist()}
    assert answer.asked == len(different) < len(rows) / 5


@pytest.mark.parametrize("few_jobs", [True, False])
def test_sets_are_not_compared_where_it_does_not_pay(few_jobs: bool) -> None:
    rows = some_rows(6, 2)[: FEWEST - 1] if few_jobs else some_rows(100_000, 4)
    answer = Counted()
    assert np.array_equal(each_once(answer, rows, 100_000), of_set(rows))
    assert answer.asked == len(rows)


def test_sets_too_large_for_a_key_are_predicted() -> None:
    rows, answer = some_rows(3, 40), Counted()
    assert np.array_equal(each_once(answer, rows, 100_000), of_set(rows))
