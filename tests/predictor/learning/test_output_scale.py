"""The factor on the kernel's variances that observations suggest."""

import numpy as np
import pytest

from predictor.learning.covariances import Evidence
from predictor.learning.kernel import KernelParameters, Members
from predictor.learning.output_scale import most_probable_scale, output_scale
from predictor.learning.prior_variance import PriorVariance
from predictor.learning.rows import Rows, covariance, variance

P = KernelParameters()
JOBS = 12
MEMBERS = Members(
    np.random.default_rng(0).normal(size=(JOBS, 3)),
    np.arange(JOBS) // 2,
    np.arange(JOBS),
    np.zeros(JOBS, np.int64),
)
PAIRS = np.array([(i, j) for i in range(JOBS) for j in range(JOBS) if i != j])
ROWS = Rows(PAIRS[:, 0], PAIRS[:, 1:])
NOISE = np.full(len(PAIRS), P.noise)


def evidence(target: np.ndarray, order: np.ndarray | None = None) -> Evidence:
    order = np.arange(len(target)) if order is None else order
    none = np.zeros(len(order), dtype=bool)
    return Evidence(MEMBERS, ROWS.take(order), target[order], NOISE[order], none, order)


@pytest.mark.parametrize("ratio", [0.125, 1.0, 4.0])
def test_errors_drawn_from_the_kernel_are_recognised(ratio: float) -> None:
    gram = ratio * covariance(P, MEMBERS, ROWS, MEMBERS, ROWS) + np.diag(NOISE)
    found = [
        output_scale(P, evidence(np.random.default_rng(seed).multivariate_normal(np.zeros(len(gram)), gram)))
        for seed in range(5)
    ]
    assert ratio / 2 <= np.median(found) <= 2 * ratio


def test_the_architecture_that_is_predicted_worst_decides() -> None:
    rng = np.random.default_rng(3)
    new = MEMBERS.model[PAIRS[:, 0]] == 2
    drawn = rng.multivariate_normal(np.zeros(len(PAIRS)), covariance(P, MEMBERS, ROWS, MEMBERS, ROWS))
    known = np.where(new, 0.0, rng.normal(0, 0.1, len(PAIRS)))
    assert output_scale(P, evidence(known)) < 0.1
    assert output_scale(P, evidence(np.where(new, drawn, known))) >= 0.5


def test_it_does_not_depend_on_the_order_of_rows() -> None:
    rng = np.random.default_rng(1)
    target, order = rng.normal(0, 0.1, len(PAIRS)), rng.permutation(len(PAIRS))
    assert output_scale(P, evidence(target)) == output_scale(P, evidence(target, order))


def test_absurd_errors_say_nothing_about_others() -> None:
    target = np.random.default_rng(2).normal(0, 0.1, len(PAIRS))
    few = np.where(np.arange(len(target)) % 20 == 0, 7.0, target)
    assert output_scale(P, evidence(few)) == output_scale(P, evidence(target)) < 1


def test_many_implausible_errors_are_no_sign_of_small_ones() -> None:
    target = np.random.default_rng(2).normal(0, 0.1, len(PAIRS))
    absurd = np.where(np.arange(len(target)) % 3 == 0, 7.0, target)
    assert output_scale(P, evidence(absurd)) >= 1


def test_without_plausible_rows_it_is_one() -> None:
    assert output_scale(P, evidence(np.zeros(0))) == 1.0
    assert most_probable_scale(np.ones((1, 1)), np.array([50.0]), np.array([0.01])) == 1.0


def test_prior_variances_are_scaled_as_the_kernel_is() -> None:
    half, partners = PriorVariance(P).scaled(0.5), np.array([[1, 2], [3, -1]])
    exact = variance(P.scaled(0.5), MEMBERS, Rows(np.array([0, 0]), partners))
    np.testing.assert_allclose(half.beside(MEMBERS, partners), exact)
    assert half.beside_one == pytest.approx(0.5 * PriorVariance(P).beside_one)
    one, other = np.array([1]), np.array([2])
    np.testing.assert_allclose(
        half.between(MEMBERS, one, other), 0.5 * PriorVariance(P).between(MEMBERS, one, other)
    )
