from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from predictor.examples.observations import Observation
from predictor.learning.answers import stated_alone
from predictor.learning.evidence.config import PosteriorConfig
from predictor.learning.posterior import Posterior
from predictor.predictor import Predictor
from profiling.workload import ColocationSet, SoloProfile, Workload
from tests.predictor.learning.agreement import arrays_that_agree

JOBS = [Workload(name, batch) for name in ("alpha", "beta", "gamma") for batch in (16, 32)]
NEW, OTHER, PARTNER = JOBS[0], JOBS[2], JOBS[4]


def stated(job: Workload, step_time_s: float) -> Workload:
    return replace(job, solo=SoloProfile(step_time_s=step_time_s))


def solo_s(predictor: Predictor, job: Workload) -> float:
    return float(predictor.predict_arrays([ColocationSet("v100", (job,))]).solo_step_time_s[0, 0])


def together(predictor: Predictor, true_s: dict[Workload, float], excess: float) -> list[Observation]:
    """All pairs of jobs, whose SPECs state nothing, with `excess` times the excess predicted of what is true."""
    result = []
    for pair in combinations(true_s, 2):
        told = ColocationSet("v100", tuple(stated(job, true_s[job]) for job in pair))
        slowdown = 1 + excess * (predictor.predict_arrays([told]).slowdown[0] - 1)
        steps = [true_s[job] * s for job, s in zip(pair, slowdown.tolist(), strict=True)]
        result += [Observation(ColocationSet("v100", pair), m, step) for m, step in enumerate(steps)] * 4
    return result


@pytest.mark.parametrize("factor", [0.4, 0.8, 1.4, 2.5])
@pytest.mark.parametrize("most", [1024, 4])
def test_a_solo_step_time_stated_after_the_job_was_observed_beside_others(
    predictor: Predictor, factor: float, most: int
) -> None:
    """Answers are as if the job had been observed alone, for it and for its neighbours."""
    partner = stated(PARTNER, solo_s(predictor, PARTNER))
    true_s = {NEW: factor * solo_s(predictor, NEW), partner: solo_s(predictor, PARTNER)}
    posterior = Posterior(predictor, PosteriorConfig(most_rows=most))
    posterior.observe(together(predictor, true_s, 1.2))
    alone = posterior.extended([Observation(ColocationSet("v100", (NEW,)), 0, true_s[NEW])] * 4)
    asked, unstated = (ColocationSet("v100", (job, partner)) for job in (stated(NEW, true_s[NEW]), NEW))
    answer, expected = posterior.predict_arrays([asked]), alone.predict_arrays([unstated])
    np.testing.assert_allclose(answer.slowdown, expected.slowdown, rtol=0.03)
    single, same = posterior.predict(asked), alone.predict(unstated)
    for m, (member, like) in enumerate(zip(single.members, same.members, strict=True)):
        assert member.slowdown.value == pytest.approx(answer.slowdown[0, m], rel=1e-6)
        width, usual = (math.log(q.upper / q.lower) for q in (member.slowdown, like.slowdown))
        assert width < 2.0 * usual


def test_all_methods_agree_about_sets_with_several_such_jobs(predictor: Predictor) -> None:
    true_s = {job: f * solo_s(predictor, job) for job, f in ((NEW, 1.5), (OTHER, 0.7), (PARTNER, 1.2))}
    posterior = Posterior(predictor)
    observations = together(predictor, true_s, 1.2)
    posterior.observe(observations)
    jobs = [stated(job, step) for job, step in true_s.items()]
    sets = [ColocationSet("v100", tuple(some)) for k in (1, 2, 3) for some in combinations(jobs, k)]
    sets += [ColocationSet("v100", (jobs[0], OTHER)), ColocationSet("v100", (JOBS[1], jobs[1], jobs[2]))]
    arrays = arrays_that_agree(posterior, sets)
    observed = [o.step_time_s for o in (*observations[::8], *observations[1::8])]
    pairs = arrays.step_time_s[3:6, :2]
    np.testing.assert_allclose(np.sort(pairs.ravel()), np.sort(observed), rtol=0.03)


def test_what_a_question_states_changes_no_other_answer(predictor: Predictor) -> None:
    true_s = {job: 2.0 * solo_s(predictor, job) for job in (NEW, OTHER)}
    posterior = Posterior(predictor)
    posterior.observe(together(predictor, true_s, 1.2))
    asked = [ColocationSet("v100", pair) for pair in combinations(JOBS, 2)]
    before = posterior.predict_arrays(asked)
    posterior.predict_many([ColocationSet("v100", (stated(NEW, 1e-3), OTHER))])
    mixed = posterior.predict_arrays([ColocationSet("v100", (stated(NEW, 5.0), OTHER)), *asked])
    np.testing.assert_array_equal(mixed.slowdown[1:], before.slowdown)
    assert np.isfinite(mixed.step_time_s).all()


@pytest.mark.parametrize("most", [0, 3])
def test_thousands_of_statements_cost_a_bounded_number_of_predictions(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Beyond it, only what the job was expected to do stays as it was; its own step times are read."""
    true_s = {job: 2.0 * solo_s(predictor, job) for job in (NEW, OTHER)}
    posterior = Posterior(predictor)
    posterior.observe(together(predictor, true_s, 1.2))
    asked = ColocationSet("v100", tuple(stated(job, step) for job, step in true_s.items()))
    expected = posterior.predict_arrays([asked]).step_time_s
    monkeypatch.setattr(stated_alone, "_MOST_PREDICTED", most)
    monkeypatch.setattr(stated_alone, "_READ_TOGETHER", 1)
    fresh = Posterior(predictor)
    fresh.observe(together(predictor, true_s, 1.2))
    np.testing.assert_allclose(fresh.predict_arrays([asked]).step_time_s, expected, rtol=0.25)
