from __future__ import annotations

import numpy as np
import pytest

from predictor.examples.observations import Observation
from predictor.learning.posterior import Posterior
from predictor.predictor import Predictor
from profiling.workload import ColocationSet, Workload

SLOW, OTHER, THIRD = (Workload(name, 16) for name in ("alpha", "beta", "gamma"))
ALONE, PAIR = ColocationSet("v100", (SLOW,)), ColocationSet("v100", (SLOW, OTHER))


def told(predictor: Predictor, factor: float, count: int = 1, sharing: str = "time-slice") -> Posterior:
    """`SLOW` alone takes so many times as long as predicted."""
    alone = ColocationSet("v100", (SLOW,), sharing)
    step_s = factor * float(predictor.predict_arrays([alone]).step_time_s[0, 0])
    posterior = Posterior(predictor)
    posterior.observe([Observation(alone, 0, step_s)] * count)
    return posterior


@pytest.mark.parametrize("factor", [0.02, 12.0, 50.0])
@pytest.mark.parametrize("count", [1, 16])
def test_a_step_time_alone_that_no_graph_explains_is_believed(
    predictor: Predictor, factor: float, count: int
) -> None:
    posterior = told(predictor, factor, count)
    before, after = (p.predict_arrays([ALONE, PAIR]) for p in (predictor, posterior))
    expected = factor * before.solo_step_time_s[:, 0]
    np.testing.assert_allclose(after.solo_step_time_s[:, 0], expected, rtol=0.02)
    # How much the two slow each other is another question.
    np.testing.assert_allclose(after.slowdown, before.slowdown, rtol=0.02)
    solo = posterior.predict(ALONE).members[0].solo_step_time_s
    assert solo.value == pytest.approx(expected[0], rel=0.02)
    assert solo.lower < expected[0] < solo.upper < 2 * solo.value


def test_it_holds_under_every_sharing_mode_and_says_nothing_of_other_jobs(predictor: Predictor) -> None:
    posterior = told(predictor, 30.0, sharing="mps")
    before, after = (p.predict_arrays([ALONE]).solo_step_time_s[0, 0] for p in (predictor, posterior))
    assert after == pytest.approx(30 * before, rel=0.02)
    others = [ColocationSet("v100", (OTHER, THIRD)), ColocationSet("p100", (SLOW, OTHER))]
    np.testing.assert_allclose(
        posterior.predict_arrays(others).step_time_s, predictor.predict_arrays(others).step_time_s, rtol=0.01
    )


def test_observations_beside_others_are_read_with_it_in_any_order(predictor: Predictor) -> None:
    alone, pair = predictor.predict_arrays([ALONE, PAIR]).step_time_s[:, 0]
    observations = [Observation(PAIR, 0, float(30 * pair)), Observation(ALONE, 0, float(30 * alone))]
    first, second = Posterior(predictor), Posterior(predictor)
    first.observe(observations)
    second = second.extended(observations[1:]).extended(observations[:1])
    expected = predictor.predict_arrays([PAIR])
    for posterior in (first, second):
        answer = posterior.predict_arrays([PAIR])
        np.testing.assert_allclose(answer.slowdown, expected.slowdown, rtol=0.05)
        assert answer.step_time_s[0, 0] == pytest.approx(30 * pair, rel=0.05)
