"""Weighted sums of outer products: updates give what computing anew gives."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.gaussian_process.precision import Before, LeveragedPrecision, Precision

RNG = np.random.default_rng(3)
ROWS = RNG.normal(size=(90, 24))
WEIGHT = RNG.uniform(0.5, 300.0, 90)
TARGET = RNG.normal(size=90)


def same(one: LeveragedPrecision, other: LeveragedPrecision) -> None:
    for name in ("total", "factor", "leverage", "weight", "information"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-8, atol=1e-10)


def test_leverage_matches_the_textbook_formula() -> None:
    one = LeveragedPrecision(ROWS, WEIGHT, TARGET)
    inverse = np.linalg.inv(np.eye(24) + (ROWS.T * WEIGHT) @ ROWS)
    np.testing.assert_allclose(one.leverage, np.einsum("ni,ij,nj->n", ROWS, inverse, ROWS), rtol=1e-8)


def test_pull_is_the_weighted_sum_of_targets() -> None:
    np.testing.assert_allclose(Precision(ROWS, WEIGHT, TARGET).information, ROWS.T @ (WEIGHT * TARGET))


@pytest.mark.parametrize("more", [1, 4, 60])
def test_later_rows_weights_and_targets(more: int) -> None:
    known = len(ROWS) - more
    before = WEIGHT[:known].copy()
    before[[3, 7]] = 0.0, 40.0
    weight = WEIGHT.copy()
    weight[-1] = 0.0
    target = TARGET.copy()
    target[[3, 5]] += 1.0
    earlier = Before(LeveragedPrecision(ROWS[:known], before, TARGET[:known]))
    same(LeveragedPrecision(ROWS, weight, target, earlier), LeveragedPrecision(ROWS, weight, target))


def test_replaced_rows() -> None:
    former = ROWS[:80].copy()
    former[[2, 40]] = RNG.normal(size=(2, 24))
    earlier = Before(LeveragedPrecision(former, WEIGHT[:80], TARGET[:80]), np.array([2, 40]), former[[2, 40]])
    weight = WEIGHT[:82].copy()
    weight[40] *= 2.0
    later = LeveragedPrecision(ROWS[:82], weight, TARGET[:82], earlier)
    same(later, LeveragedPrecision(ROWS[:82], weight, TARGET[:82]))


def test_many_updates_do_not_drift() -> None:
    one = LeveragedPrecision(ROWS[:10], WEIGHT[:10], TARGET[:10])
    for count in range(11, 91):
        one = LeveragedPrecision(ROWS[:count], WEIGHT[:count], TARGET[:count], Before(one))
    same(one, LeveragedPrecision(ROWS, WEIGHT, TARGET))


def test_the_nearest_earlier_sum_is_updated() -> None:
    one, weight = Precision(ROWS, WEIGHT, TARGET), WEIGHT.copy()
    far = Precision(ROWS, WEIGHT[::-1].copy(), TARGET)
    assert Precision(ROWS, weight, TARGET, [Before(far), Before(one)]).factor is one.factor
    weight[[0, 5]] = 0.0, 1.0
    anew = Precision(ROWS, weight, TARGET)
    for before in ([Before(one)], [Before(far)], [Before(far), Before(one)]):
        np.testing.assert_allclose(Precision(ROWS, weight, TARGET, before).factor, anew.factor, rtol=1e-8)
