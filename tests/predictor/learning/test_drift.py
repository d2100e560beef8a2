from __future__ import annotations

from predictor.learning.drift import drift_of
from predictor.learning.posterior import Posterior
from predictor.predictor import Predictor
from tests.predictor.learning.test_posterior import PAIR, seen


def test_drift_falls_and_observations_are_not_scored_on_themselves(predictor: Predictor) -> None:
    posterior = Posterior(predictor)
    drift = drift_of(posterior, [seen(predictor, PAIR, 0, 2.0)] * 9)
    assert drift.count == 9
    assert drift.after < 0.5 * drift.before
    single = drift_of(posterior, [seen(predictor, PAIR, 0, 2.0)])
    assert single.before == single.after > 0
    assert drift_of(posterior, []).count == 0
