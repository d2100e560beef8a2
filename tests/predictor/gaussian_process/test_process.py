"""The process compared with the textbook formulas, on a handful of members."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from models.features import Floats
from predictor.examples.examples import Integers
from predictor.gaussian_process.covariances import Evidence
from predictor.gaussian_process.expectation import Expectation
from predictor.gaussian_process.kernel import KernelParameters, MemberKernel, Members
from predictor.gaussian_process.link import Link, from_scale, slope, to_scale
from predictor.gaussian_process.pair_table import PairBlocks
from predictor.gaussian_process.process import Process
from predictor.gaussian_process.rows import Rows, covariance, partners_of, variance

P = KernelParameters()
RNG = np.random.default_rng(0)
MEMBERS = Members(
    RNG.normal(size=(8, 3)),
    np.arange(8) // 2,
    np.arange(8),
    np.array([0, 0, 0, 0, 0, 0, 1, 1], dtype=np.int64),
    occupancy=np.linspace(0.2, 1.0, 8),
)


def rows_of(pairs: list[tuple[int, ...]]) -> Rows:
    width = max(2, max(map(len, pairs))) - 1
    partners = np.full((len(pairs), width), -1, dtype=np.int64)
    for row, pair in enumerate(pairs):
        partners[row, : len(pair) - 1] = pair[1:]
    return Rows(np.array([p[0] for p in pairs]), partners)


def told(rows: Rows, target: np.ndarray, most: int = 1024) -> Process:
    count = len(rows)
    return Process(P, Evidence(MEMBERS, rows, target, np.full(count, 0.01), np.arange(count)), most)


PAIRS = [(i, j) for i in range(6) for j in range(6) if i != j]


@pytest.mark.parametrize("knee", [0.05, 0.1])
def test_the_scale_and_its_inverse(knee: float) -> None:
    log_slowdown = np.linspace(-0.3, 4.0, 200)
    value = to_scale(log_slowdown, knee)
    np.testing.assert_allclose(from_scale(value, knee), log_slowdown, atol=1e-9)
    np.testing.assert_allclose(
        np.gradient(value, log_slowdown)[1:-1], slope(log_slowdown, knee)[1:-1], rtol=0.2
    )
    one = Link(knee)
    for vector, number, given in (
        (to_scale, one.to_scale, log_slowdown),
        (from_scale, one.from_scale, np.append(value, [-50.0, 50.0])),
        (slope, one.slope, log_slowdown),
    ):
        expected = vector(given, knee)
        np.testing.assert_allclose([number(x) for x in given.tolist()], expected, rtol=1e-12, atol=1e-12)


def test_covariances_are_symmetric_and_positive() -> None:
    rows = rows_of([*PAIRS, (6, 7), (0, 1, 2), (3,)])
    gram = covariance(P, MEMBERS, rows, MEMBERS, rows)
    np.testing.assert_allclose(gram, gram.T, atol=1e-12)
    assert np.linalg.eigvalsh(gram).min() > -1e-9
    np.testing.assert_allclose(np.diag(gram), variance(P, MEMBERS, rows), atol=1e-12)
    assert gram[-1].max() == 0.0, "nothing is said of a job alone"


def test_mean_and_variance_match_the_textbook_formulas() -> None:
    seen, asked = rows_of(PAIRS[:9]), rows_of(PAIRS[9:])
    target = RNG.normal(0, 0.3, 9)
    mean, spread = told(seen, target).answer(MEMBERS, asked)
    inverse = np.linalg.inv(covariance(P, MEMBERS, seen, MEMBERS, seen) + 0.01 * np.eye(9))
    cross = covariance(P, MEMBERS, asked, MEMBERS, seen)
    np.testing.assert_allclose(mean, cross @ inverse @ target, rtol=1e-5, atol=1e-6)
    expected = variance(P, MEMBERS, asked) - np.einsum("ij,jk,ik->i", cross, inverse, cross)
    np.testing.assert_allclose(spread, expected, rtol=1e-4)


def test_all_inducing_rows_give_the_exact_process_and_fewer_approximate_it() -> None:
    seen, target = rows_of(PAIRS), RNG.normal(0, 0.3, len(PAIRS))
    asked = rows_of([(6, 7), (7, 6)])
    exact = told(seen, target).answer(MEMBERS, asked)
    fewer = told(seen, target, most=len(PAIRS) - 4).answer(MEMBERS, asked)
    np.testing.assert_allclose(fewer[0], exact[0], atol=0.05)
    np.testing.assert_allclose(fewer[1], exact[1], rtol=0.1)


def test_the_table_of_corrections_holds_every_pairs_mean() -> None:
    process = told(rows_of([*PAIRS[:12], (0, 1, 2)]), RNG.normal(0, 0.3, 13))
    table = PairBlocks(process).of_sets(MEMBERS, np.array(PAIRS))
    mean, _ = process.answer(MEMBERS, rows_of(PAIRS))
    np.testing.assert_allclose(table[:, 0], mean, atol=1e-10)
    three = PairBlocks(process).of_sets(MEMBERS, np.array([[0, 1, 2], [0, 1, -1], [3, -1, -1]]))
    asked, _ = process.answer(MEMBERS, rows_of([(0, 1, 2), (0, 1), (3,)]))
    np.testing.assert_allclose(three[:, 0], asked, atol=1e-10)


def test_implausible_observations_have_little_weight() -> None:
    asked = rows_of([(2, 3), (4, 5)])
    absurd, _ = told(rows_of([(0, k) for k in range(1, 6)]), np.full(5, 6.0)).answer(MEMBERS, asked)
    assert np.abs(absurd).max() < 0.05


def test_the_noise_of_an_outlier_stays_when_its_target_moves_a_little() -> None:
    rows = rows_of(PAIRS)
    target = np.zeros(len(PAIRS))
    target[3] = 8.0
    for most, stays in ((10, True), (1024, False)):
        noise = [told(rows, np.where(target, target + moved, 0.0), most=most).noise for moved in (0.0, 0.01)]
        assert (noise[0] == noise[1]).all() == stays, most
        np.testing.assert_allclose(noise[0], noise[1], rtol=0.01)
        assert noise[0][3] > 100.0


def test_observing_one_by_one_equals_observing_together() -> None:
    rows = rows_of(PAIRS[:8])
    start = Expectation(*told(rows_of(PAIRS[8:10]), np.array([0.2, -0.1])).joint(MEMBERS, rows))
    observed, noise = RNG.normal(size=8), np.full(8, 0.02)
    first, second = np.array([1, 5]), np.array([2])
    both = np.concatenate([first, second])
    step = start.observe(first, observed[first], noise[first]).observe(
        second, observed[second], noise[second]
    )
    once = start.observe(both, observed[both], noise[both])
    np.testing.assert_allclose(step.mean, once.mean, rtol=1e-8)
    np.testing.assert_allclose(step.covariance, once.covariance, atol=1e-10)


def gain(start: Expectation, rows: Integers, noise: Floats, asked: Floats) -> float:
    """Weighted variance that observing some rows removes."""
    after = start.observe(rows, start.mean[rows], noise[rows])
    return float(np.diag(start.covariance - after.covariance) @ asked)


def test_the_best_probe_removes_the_most_variance() -> None:
    rows = rows_of(PAIRS[:8])
    start = Expectation(*told(rows_of(PAIRS[8:10]), np.array([0.2, -0.1])).joint(MEMBERS, rows))
    candidates, noise, asked = [np.array([k, k + 1]) for k in (0, 2, 4)], np.full(8, 0.02), np.ones(8)
    gains = [gain(start, rows_, noise, asked) for rows_ in candidates]
    assert start.best(candidates, noise, asked) == int(np.argmax(gains))


def test_probes_of_different_sizes_are_compared() -> None:
    start = told(rows_of(PAIRS[8:10]), np.array([0.2, -0.1]))
    expected = Expectation(*start.joint(MEMBERS, rows_of(PAIRS[:8])))
    noise, asked = np.linspace(0.01, 0.1, 8), np.linspace(1.0, 0.1, 8)
    groups = [np.array(rows) for rows in ([0], [1, 4], [2, 3, 7], [5, 6], [7])]
    gains = [gain(expected, rows, noise, asked) for rows in groups]
    assert expected.best(groups, noise, asked) == int(np.argmax(gains))


def test_partners_are_the_others_of_a_set() -> None:
    partners = partners_of(np.array([4, 5, 6, 7, 8]), np.array([0, 0, 1, 1, 1]))
    assert [sorted(p for p in row if p >= 0) for row in partners.tolist()] == [
        [5],
        [4],
        [7, 8],
        [6, 8],
        [6, 7],
    ]


@pytest.mark.parametrize("most", [100, 20])
def test_an_extended_process_equals_a_new_one(most: int) -> None:
    """Rows are added, one is observed again, and one is first plausible and then not."""
    rng = np.random.default_rng(5)
    rows = rows_of([*PAIRS, (6, 7), (7, 6), (0, 1, 2)])
    target = rng.normal(0, 0.3, len(rows))
    rank = rng.permutation(len(rows))

    def given(count: int, seen: float, first: float, earlier: Process | None) -> Process:
        values = target.copy()
        values[0] = first
        part = rows.take(np.arange(count))
        noise = np.full(count, 0.01)
        noise[1] = 0.01 / seen
        return Process(P, Evidence(MEMBERS, part, values[:count], noise, rank[:count]), most, earlier)

    asked = rows_of([(4, 5), (0, 3), (7, 7), (1, 2, 3)])
    process: Process | None = None
    for count, seen, first in ((12, 1.0, 0.1), (25, 1.0, 0.1), (26, 1.3, 0.1), (30, 1.3, 0.2), (33, 1.3, 40.0), (33, 1.3, 0.1)):  # fmt: skip
        process = given(count, seen, first, process)
        mean, spread = process.answer(MEMBERS, asked)
        alone = given(count, seen, first, None)
        expected = alone.answer(MEMBERS, asked)
        np.testing.assert_allclose(mean, expected[0], atol=1e-6)
        np.testing.assert_allclose(spread, expected[1], atol=1e-6)


def test_of_two_contradictory_rows_the_one_observed_more_often_wins() -> None:
    """Of one job beside two partners of the same features."""
    rows = Rows(np.zeros(2, int), np.array([[4], [5]]))
    members = replace(MEMBERS, place=MEMBERS.place[[0, 1, 2, 3, 4, 4, 6, 7]])
    target, count = np.array([-1.5, 1.0]), np.array([1.0, 16.0])
    process = Process(P, Evidence(members, rows, target, P.noise / count, np.arange(2), count))
    mean, _ = process.answer(members, rows)
    assert mean[1] > 0.5
    assert mean[0] > 0


def test_prior_variance_of_many_members_is_not_that_of_all_pairs_of_them() -> None:
    """Rows of two partners each need [2, 2], not [4000, 4000]."""
    count = 4000
    number = np.arange(count)
    members = Members(np.random.default_rng(5).normal(size=(count, 3)), number % 7, number, number % 2)
    rows = Rows(number[:-4], np.stack([number[2:-2], number[4:]], 1))
    tracemalloc.start()
    together = variance(P, members, rows)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 30e6
    few = rows.take(np.arange(5))
    np.testing.assert_allclose(together[:5], np.diag(covariance(P, members, few, members, few)))


def test_rows_of_many_members_are_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = rows_of([*PAIRS[:9], (3,), (2, 0, 1, 6)]), rows_of([(5, 4, 3), *PAIRS])
    whole = covariance(P, MEMBERS, a, MEMBERS, b)
    sizes = []

    class Counted(MemberKernel):
        @classmethod
        def of(cls, parameters: KernelParameters, one: Members, other: Members) -> MemberKernel:
            sizes.append(len(one) * len(other))
            return MemberKernel.of(parameters, one, other)

    monkeypatch.setattr("predictor.gaussian_process.rows.MemberKernel", Counted)
    monkeypatch.setattr("predictor.gaussian_process.rows._MOST_COMPARED", 12)
    np.testing.assert_allclose(covariance(P, MEMBERS, a, MEMBERS, b), whole, atol=1e-12)
    assert max(sizes) <= 12, "as many members as in the largest two sets"
