"""Inducing rows: those that others explain least, whatever order rows came in."""

from __future__ import annotations

import numpy as np
import pytest

from models.features import Floats
from predictor.learning.inducing import Choice, Inducing
from predictor.learning.kernel import Members
from predictor.learning.rows import Rows, covariance, variance
from tests.predictor.learning.test_process import P

RNG = np.random.default_rng(4)
JOBS = 24
MEMBERS = Members(
    RNG.normal(size=(JOBS, 3)), np.arange(JOBS) // 3, np.arange(JOBS), np.repeat([0, 1], [JOBS - 6, 6])
)


def drawn(count: int, jobs: int = JOBS) -> Rows:
    own, partner = RNG.integers(0, jobs, (2, count))
    return Rows(
        own, np.stack([partner, np.where(RNG.random(count) < 0.3, RNG.integers(0, jobs, count), -1)], 1)
    )


def chosen(rows: Rows, rank: np.ndarray, most: int) -> tuple[Inducing, Floats]:
    through = np.zeros((len(rows), most))
    inducing = Choice(P, MEMBERS, rows, variance(P, MEMBERS, rows), rank, through).made()
    return inducing, through[:, : len(inducing)]


@pytest.mark.parametrize("most", [5, 60, 700])
def test_the_factor_is_of_the_chosen_rows(most: int) -> None:
    rows = drawn(700)
    inducing, through = chosen(rows, RNG.permutation(700), most)
    used = rows.take(inducing.numbers)
    gram = covariance(P, MEMBERS, used, MEMBERS, used)
    np.testing.assert_allclose(inducing.factor @ inducing.factor.T, gram, atol=1e-10)
    cross = covariance(P, MEMBERS, used, MEMBERS, rows)
    np.testing.assert_allclose(inducing.factor @ through.T, cross, atol=1e-10)
    assert inducing.full == (len(inducing) == most)


def test_rows_are_explained_if_as_many_may_be_chosen_as_it_takes() -> None:
    rows = drawn(1500)
    inducing, through = chosen(rows, RNG.permutation(1500), 1500)
    assert not inducing.full
    assert len(inducing) < 900
    assert (variance(P, MEMBERS, rows) - (through**2).sum(1)).max() < 2 * P.noise


def test_the_choice_does_not_depend_on_the_order_of_rows() -> None:
    rows, rank = drawn(900), RNG.permutation(900)
    order = RNG.permutation(900)
    one, _ = chosen(rows, rank, 100)
    other, _ = chosen(rows.take(order), rank[order], 100)
    assert one.numbers.tolist() == order[other.numbers].tolist()


def test_a_job_with_few_rows_is_among_the_chosen() -> None:
    known = drawn(2000, JOBS - 1)
    new = Rows(np.full(2, JOBS - 1), np.array([[3, -1], [8, -1]]))
    inducing, _ = chosen(known.joined(new), RNG.permutation(2002), 100)
    assert {2000, 2001} & set(inducing.numbers.tolist())


@pytest.mark.parametrize("most", [40, 400])
def test_whether_a_further_row_would_be_chosen_is_known_without_choosing_again(most: int) -> None:
    rank = RNG.permutation(640)
    rows = drawn(640)
    inducing, _ = chosen(rows.take(np.arange(600)), rank[:600], most)
    further, said = np.arange(600, 640), []
    for row in further:
        one = rows.take(np.array([row]))
        cross = covariance(P, MEMBERS, rows.take(inducing.numbers), MEMBERS, one)
        through = np.linalg.solve(inducing.factor, cross).T
        said += inducing.would_choose(variance(P, MEMBERS, one), through, rank[[row]]).tolist()
        again, _ = chosen(rows.take(np.append(np.arange(600), row)), rank[[*range(600), row]], most)
        assert said[-1] == (600 in again.numbers)
        if not said[-1]:
            assert again.numbers.tolist() == inducing.numbers.tolist()
    assert 0 < sum(said) < len(said)
