"""How large errors are, learned from observations."""

from dataclasses import replace

import numpy as np
import pytest

from predictor.learning.covariances import Evidence
from predictor.learning.kernel import KernelParameters, Members
from predictor.learning.output_scale import OutputScale
from predictor.learning.rows import Rows, covariance

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
SMALL = np.random.default_rng(2).normal(0, 0.05, len(PAIRS))


def learned(error: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
    rows = np.arange(len(error)) if rows is None else rows
    return OutputScale.of(P, MEMBERS, ROWS.own[rows], error[rows], NOISE[rows]).of_members(MEMBERS) ** 2


@pytest.mark.parametrize("factor", [0.125, 0.5, 1.0])
def test_errors_drawn_from_the_kernel_are_recognised(factor: float) -> None:
    gram = factor * covariance(P, MEMBERS, ROWS, MEMBERS, ROWS) + np.diag(NOISE)
    draws = np.random.default_rng(0).multivariate_normal(np.zeros(len(gram)), gram, size=5)
    assert factor / 2 <= np.median([learned(draw) for draw in draws]) <= 2 * factor


def test_each_architecture_has_its_own() -> None:
    new = MEMBERS.model == 2
    own = new[PAIRS[:, 0]]
    factor = learned(np.where(own, 20 * SMALL, SMALL))
    assert (factor[new] >= 0.5).all()
    assert (factor[~new] < 0.1).all()


def test_partners_that_are_not_known_do_not_make_a_job_less_known() -> None:
    beside_new = MEMBERS.model[PAIRS[:, 1]] == 2
    np.testing.assert_array_less(learned(np.where(beside_new, 20 * SMALL, SMALL)), 0.2)


def test_it_does_not_depend_on_the_order_of_rows() -> None:
    np.testing.assert_array_equal(
        learned(SMALL), learned(SMALL, np.random.default_rng(1).permutation(len(SMALL)))
    )


def test_without_observations_or_with_absurd_ones_it_is_one() -> None:
    np.testing.assert_array_equal(learned(SMALL, np.zeros(0, np.int64)), 1.0)
    np.testing.assert_array_equal(learned(np.full(len(SMALL), 50.0)), 1.0)


def test_members_that_were_met_later_have_one() -> None:
    scale = OutputScale.of(P, MEMBERS, ROWS.own, SMALL, NOISE)
    later = replace(MEMBERS, model=MEMBERS.model + 100, device=MEMBERS.device)
    elsewhere = replace(MEMBERS, device=MEMBERS.device + 1)
    np.testing.assert_array_equal(scale.of_members(later), 1.0)
    np.testing.assert_array_equal(scale.of_members(elsewhere), 1.0)


def test_a_set_has_the_scale_of_its_least_known_member() -> None:
    scale = OutputScale(np.array([[0.25], [0.5], [1.0]]))
    members = Members(np.zeros((3, 1)), np.arange(3), np.arange(3), np.zeros(3, np.int64))
    sets = np.array([[0, -1, -1], [0, 1, -1], [0, 2, 1]])
    np.testing.assert_array_equal(scale.of_sets(members, sets), [0.25, 0.5, 1.0])
    none = np.zeros(2, dtype=bool)
    rows = Rows(np.array([0, 1]), np.array([[1], [2]]))
    evidence = scale.removed(Evidence(members, rows, np.ones(2), np.ones(2), none, np.arange(2)))
    np.testing.assert_array_equal(evidence.target, [2.0, 1.0])
    np.testing.assert_array_equal(evidence.noise, [4.0, 1.0])
    np.testing.assert_array_equal(evidence.doubt, [4.0, 1.0])
