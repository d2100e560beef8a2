"""Inducing rows: those that others explain least, whatever order rows came in."""

from __future__ import annotations

import numpy as np
import pytest

from models.features import Floats
from predictor.gaussian_process.inducing import Choice, Inducing, Start
from predictor.gaussian_process.kernel import Members
from predictor.gaussian_process.rows import Rows, covariance, variance
from tests.predictor.gaussian_process.test_process import P

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
def test_a_further_row_changes_the_choice_from_where_it_would_have_been_chosen(most: int) -> None:
    rank, rows, before = RNG.permutation(640), drawn(640), np.arange(600)
    inducing, earlier = chosen(rows.take(before), rank[:600], most)
    kept = []
    for row in range(600, 640):
        one, all_of_them = rows.take(np.array([row])), np.append(before, row)
        cross = covariance(P, MEMBERS, rows.take(inducing.numbers), MEMBERS, one)
        through = np.linalg.solve(inducing.factor, cross).T
        start = inducing.insertion(variance(P, MEMBERS, one), through, rank[[row]])
        anew, of_all = chosen(rows.take(all_of_them), rank[all_of_them], most)
        assert (start is not None) == (600 in anew.numbers)
        start = start or inducing.end
        kept.append(start.kept)
        assert anew.numbers[: start.kept].tolist() == inducing.numbers[: start.kept].tolist()
        same_choice(anew, of_all, start, inducing, np.concatenate([earlier, through]), rows.take(all_of_them), rank[all_of_them])  # fmt: skip
    assert 0 < min(kept) < max(kept) == len(inducing)


def test_a_chosen_row_that_is_another_one_now() -> None:
    rank, rows = RNG.permutation(600), drawn(600)
    inducing, earlier = chosen(rows, rank, 100)
    start = inducing.place_of(inducing.numbers[[70, 30, 99]])
    assert start == Start(30, int(inducing.round[30]))
    assert inducing.place_of(np.setdiff1d(np.arange(600), inducing.numbers)) is None
    same_choice(inducing, earlier, start, inducing, earlier, rows, rank)


def same_choice(
    anew: Inducing,
    through: Floats,
    start: Start,
    earlier: Inducing,
    earlier_through: Floats,
    rows: Rows,
    rank: np.ndarray,
) -> None:
    """Check that going on from an earlier choice gives what choosing anew does."""
    room = np.full((len(rows), max(anew.numbers.size, 400 if not anew.full else 0)), np.nan)
    room[:, : start.kept] = earlier_through[:, : start.kept]
    prior = variance(P, MEMBERS, rows)
    resumed = Choice(P, MEMBERS, rows, prior, rank, room, earlier, start).made()
    for name in ("numbers", "round", "rank", "thresholds", "full"):
        np.testing.assert_array_equal(getattr(resumed, name), getattr(anew, name))
    np.testing.assert_allclose(resumed.factor, anew.factor, atol=1e-10)
    np.testing.assert_allclose(room[:, : len(resumed)], through, atol=1e-10)
