"""The networks' weight, learned from observations."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from predictor.examples.observations import Observation
from predictor.gaussian_process.set_process import NETWORK_SHARE
from predictor.learning.evidence.network_share import DEVIATION, learned_share
from predictor.learning.posterior import Posterior
from predictor.predictor import Predictor
from profiling.workload import ColocationSet, Workload

JOBS = [
    Workload.parse(f"{name}:batch_size={size},step_time_s={0.001 * size}")
    for name in ("alpha", "beta", "gamma")
    for size in (8, 24, 64)
]
PAIRS = [ColocationSet("v100", pair) for pair in product(JOBS, JOBS)]


def observed(predictor: Predictor, network_share: float, sets: list[ColocationSet]) -> list[Observation]:
    """What a predictor with that weight expects."""
    step_s = predictor.with_network_share(network_share).predict_arrays(sets).step_time_s[:, 0]
    return [Observation(s, 0, float(t)) for s, t in zip(sets, step_s, strict=True)]


def test_the_weight_follows_from_errors_along_the_difference() -> None:
    towards, noise = np.array([0.8, -0.4, 0.0]), np.full(3, 1e-6)
    nothing = np.zeros((3, 3))
    assert learned_share(0.25 * towards, noise, towards, nothing) == pytest.approx(0.75)
    assert learned_share(-0.25 * towards, noise, towards, nothing) == pytest.approx(0.25)
    assert learned_share(3.0 * towards, noise, towards, nothing) == 1.0
    assert learned_share(-3.0 * towards, noise, towards, nothing) == 0.0
    assert learned_share(towards, noise, np.zeros(3), nothing) == NETWORK_SHARE
    # As uncertain as the weight itself: half of what the error says.
    noise = (towards * DEVIATION) ** 2 + np.array([0.0, 0.0, 1.0])
    one = slice(0, 1)
    half = learned_share(0.25 * towards[one], noise[one], towards[one], nothing[one, one])
    assert half == pytest.approx(NETWORK_SHARE + 0.125)


def test_a_weight_moves_predictions_between_process_and_networks(predictor: Predictor) -> None:
    shares = (0.0, 0.25, NETWORK_SHARE, 0.75, 1.0)
    slow = [np.log(predictor.with_network_share(s).predict_arrays(PAIRS).slowdown) for s in shares]
    np.testing.assert_allclose(slow[1], 0.75 * slow[0] + 0.25 * slow[4], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(slow[2], 0.5 * slow[0] + 0.5 * slow[4], rtol=1e-5, atol=1e-7)
    assert np.abs(slow[4] - slow[0]).max() > 0.02


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_observations_tell_the_weight(predictor: Predictor, share: float) -> None:
    posterior = Posterior(predictor)
    posterior.observe(observed(predictor, share, PAIRS[::3]) * 16)
    learned = posterior.state.predictor.network_share
    assert (learned - NETWORK_SHARE) * (share - NETWORK_SHARE) > 0.01
    truth = predictor.with_network_share(share).predict_arrays(PAIRS).slowdown
    errors = [np.abs(np.log(p.predict_arrays(PAIRS).slowdown / truth)) for p in (predictor, posterior)]
    unseen = np.arange(len(PAIRS)) % 3 > 0
    assert errors[1][unseen].mean() < 0.5 * errors[0][unseen].mean()


def test_all_doors_give_the_same_answer(predictor: Predictor) -> None:
    posterior = Posterior(predictor)
    posterior.observe(observed(predictor, 1.0, PAIRS[::3]))
    assert posterior.state.predictor.network_share != NETWORK_SHARE
    sets = [*PAIRS[:4], ColocationSet("v100", tuple(JOBS[::4]))]
    for some in (sets[:4], sets[4:]):
        arrays, rows = (
            posterior.predict_arrays(some),
            posterior.predict_rows(posterior.rows(some), "time-slice"),
        )
        np.testing.assert_allclose(rows.slowdown, arrays.slowdown, rtol=1e-6)
        for prediction, row in zip(posterior.predict_many(some), arrays.slowdown, strict=True):
            assert [m.slowdown.value for m in prediction.members] == pytest.approx(row.tolist(), rel=1e-5)


def test_what_is_observed_as_predicted_changes_nothing(predictor: Predictor) -> None:
    posterior = Posterior(predictor)
    posterior.observe(observed(predictor, NETWORK_SHARE, PAIRS))
    assert posterior.state.predictor is predictor


def test_the_order_of_observations_does_not_matter(predictor: Predictor) -> None:
    told = observed(predictor, 1.0, PAIRS[::2])
    one, other = Posterior(predictor), Posterior(predictor)
    one.observe(told)
    for observation in reversed(told):
        other = other.extended([observation])
    assert one.state.predictor.network_share == other.state.predictor.network_share
