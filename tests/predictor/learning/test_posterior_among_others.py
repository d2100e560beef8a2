"""Sets that are predicted wrong, observed among others that are predicted well."""

from __future__ import annotations

import numpy as np

from predictor.learning.posterior import Posterior
from predictor.predictor import Predictor
from profiling.workload import ColocationSet, Workload
from tests.predictor.learning.test_posterior import JOBS, PAIR, pairs_of, seen


def test_one_set_that_is_wrong_among_sets_that_are_right_is_corrected(predictor: Predictor) -> None:
    others = [pair for pair in pairs_of(JOBS) if pair != PAIR]
    posterior, factor = Posterior(predictor), 2.0
    posterior.observe([seen(predictor, pair, member, 1.0) for pair in others for member in (0, 1)])
    posterior.observe([seen(predictor, PAIR, 0, factor)] * 4)
    before, after = (p.predict_arrays([PAIR]).slowdown[0, 0] - 1 for p in (predictor, posterior))
    assert 0.8 * factor < after / before < 1.05 * factor


def test_jobs_that_are_predicted_well_do_not_slow_down_learning_about_a_new_one(predictor: Predictor) -> None:
    new = Workload.parse("delta:batch_size=16,step_time_s=0.03")
    known = [seen(predictor, pair, m, 1.0) for pair in pairs_of(JOBS) for m in (0, 1)]
    two = [seen(predictor, ColocationSet("v100", (new, job)), 0, 2.0) for job in JOBS[:3:2]]
    asked = ColocationSet("v100", (new, JOBS[4]))
    before = predictor.predict_arrays([asked]).slowdown[0, 0] - 1
    change = []
    for observations in (two, [*known, *two]):
        posterior = Posterior(predictor)
        posterior.observe(observations)
        change.append((posterior.predict_arrays([asked]).slowdown[0, 0] - 1) / before)
    alone, among_others = np.log(change)
    assert alone > 0.2
    assert among_others > 0.95 * alone


def test_a_job_whose_observations_contradict_each_other_says_little_of_others(predictor: Predictor) -> None:
    draw, bad = np.random.default_rng(1), JOBS[0]
    others = [job for job in JOBS if job.model != bad.model]
    asked = [pair for pair in pairs_of(others) if bad not in pair.workloads]
    before = Posterior(predictor)
    before.observe([seen(predictor, pair, 0, 1.3) for pair in asked[::3]])
    sets = [ColocationSet("v100", (bad, *pair.workloads[:n])) for pair in asked for n in (1, 2)]
    absurd = [seen(predictor, each, 0, float(np.exp(draw.uniform(-4.5, 4.5)))) for each in sets]
    after = before.extended(absurd)
    moved = after.predict_arrays(asked).slowdown / before.predict_arrays(asked).slowdown
    assert np.abs(np.log(moved)).max() < 0.05
