"""Errors of a process on its own evidence, each row predicted from all others."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.gaussian_process.leave_one_out import LeftOut
from tests.predictor.gaussian_process.test_process import MEMBERS, PAIRS, rows_of, told

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("most", [len(PAIRS), 24])
def test_a_left_out_row_is_predicted_as_if_unobserved(most: int) -> None:
    rows, target = rows_of(PAIRS), RNG.normal(0.0, 0.05, len(PAIRS))
    process = told(rows, target, most=most)
    left_out = process.solution.left_out(process.noise)
    for row in [24, 27, 29] if process.covariances.exact else set(range(len(rows))) - set(process.used):
        others = np.delete(np.arange(len(rows)), row)
        fewer = told(rows.take(others), target[others], most=most)
        mean, spread = fewer.answer(MEMBERS, rows.take(np.array([row])))
        assert left_out.error[row] == pytest.approx(target[row] - mean[0], abs=1e-6)
        assert left_out.variance[row] == pytest.approx(spread[0], abs=1e-6)


@pytest.mark.parametrize("actual", [0.5, 1.0, 1.5])
def test_the_ratio_is_of_actual_to_modelled_variance(actual: float) -> None:
    count = 4_000
    variance_, noise = RNG.uniform(0.01, 0.5, count), np.full(count, 0.002)
    error = RNG.normal(0.0, np.sqrt(actual * (variance_ + noise)))
    everyone = np.ones(count, dtype=bool)
    left_out = LeftOut(error, variance_, noise)
    assert left_out.variance_ratio(everyone) == pytest.approx(actual, rel=0.1)
    few = everyone & (np.arange(count) < 4)
    assert abs(left_out.variance_ratio(few) - 1) < 0.5 * max(abs(actual - 1), 0.3)
    assert left_out.variance_ratio(~everyone) == 1.0


def test_an_absurd_row_counts_at_most_like_the_largest_plausible_one() -> None:
    error = np.zeros(68)
    error[0] = 1e6
    left_out = LeftOut(error, np.ones(68), np.zeros(68))
    assert left_out.unlike.tolist() == [True] + [False] * 67
    assert left_out.variance_ratio(np.ones(68, dtype=bool)) == pytest.approx((16 + 32) / 100)
