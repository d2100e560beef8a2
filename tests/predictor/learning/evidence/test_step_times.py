"""Observed step times as evidence of solo step times, and of slowdowns given these."""

from __future__ import annotations

import math

import numpy as np
import pytest

from predictor.examples.observations import Observation
from predictor.gaussian_process.link import slope
from predictor.gaussian_process.rows import Rows
from predictor.learning.evidence.config import PosteriorConfig
from predictor.learning.posterior import Posterior
from predictor.predictor import Predictor
from profiling.workload import ColocationSet, Workload

NAMES = ("alpha", "beta", "gamma", "delta")
JOBS = [Workload.parse(f"{name}:batch_size={size}") for name in NAMES for size in (16, 32)]


def observed(
    predictor: Predictor, sets: list[ColocationSet], factor: dict[Workload, float], excess: float
) -> list[Observation]:
    """Step times if solo step times are `factor` and excesses `excess` times as predicted."""
    arrays, result = predictor.predict_arrays(sets), []
    for s, colocation_set in enumerate(sets):
        for m, job in enumerate(colocation_set.workloads):
            slowdown = 1.0 + excess * (float(arrays.slowdown[s, m]) - 1.0)
            step_s = factor.get(job, 1.0) * float(arrays.solo_step_time_s[s, m]) * slowdown
            result.append(Observation(colocation_set, m, step_s))
    return result


def pairs(jobs: list[Workload]) -> list[ColocationSet]:
    return [ColocationSet("v100", (a, b)) for k, a in enumerate(jobs) for b in jobs[k + 1 :]]


@pytest.mark.parametrize("most_rows", [512, 100])
def test_many_sets_of_jobs_known_by_graph_are_predicted_well(predictor: Predictor, most_rows: int) -> None:
    """However many: learned at once, solo step times and slowdowns drifted apart with more observations."""
    rng = np.random.default_rng(2)
    jobs = [Workload.parse(f"{name}:batch_size={8 * size}") for name in NAMES for size in range(1, 5)]
    factor = {job: math.exp(rng.normal(0.0, 0.7)) for job in jobs}
    told: list[Observation] = []
    for one in pairs(jobs):
        told += observed(predictor, [one], factor, math.exp(rng.normal(-1.0, 0.5)))
    held = [o for k, o in enumerate(told) if k // 2 % 5 == 0]
    posterior = Posterior(predictor, PosteriorConfig(most_rows=most_rows))
    posterior.observe([o for k, o in enumerate(told) if k // 2 % 5])
    arrays = posterior.predict_arrays([o.colocation_set for o in held]).step_time_s
    wrong = [math.log(arrays[k, o.member] / o.step_time_s) for k, o in enumerate(held)]
    assert np.abs(wrong).mean() < 0.13


def test_an_estimate_is_as_uncertain_as_its_slowdowns_and_its_repeats(predictor: Predictor) -> None:
    """The uncertainty is that of the slowdown beside all neighbours seen, and noise that falls with repeats."""
    told = observed(predictor, pairs(JOBS[:4])[:3], {}, 1.0)
    posterior = Posterior(predictor)
    posterior.observe(told * 2)
    state, known, p = posterior.state, posterior._known, posterior.config.parameters
    for number, error in enumerate(state.solo.members.job):
        rows = np.flatnonzero(known.members.job[state.told.own] == error)
        own, partners = state.told.own[rows[:1]], state.told.partners[rows]
        prior = posterior._priors.of(known.members, state.told.own)
        of_slowdown = prior.process.answer(known.members, Rows(own, partners.reshape(1, -1)))[1]
        steep = np.sort(slope(state.told.log_slowdown[rows], p.knee))[(len(rows) - 1) // 2]
        expected = of_slowdown[0] / steep**2 + p.noise / (2 * len(rows))
        assert state.solo.noise[number] == pytest.approx(expected)


def test_solo_step_times_follow_from_sets(predictor: Predictor) -> None:
    factor = {JOBS[0]: 1.6}
    posterior = Posterior(predictor)
    posterior.observe(observed(predictor, pairs(JOBS), factor, 1.0))
    alone = [ColocationSet("v100", (job,)) for job in JOBS]
    moved = (
        posterior.predict_arrays(alone).solo_step_time_s / predictor.predict_arrays(alone).solo_step_time_s
    )
    assert 1.25 < moved[0, 0] < 1.6
    assert np.abs(np.log(moved[2:, 0])).max() < 0.05


def test_solo_observations_take_precedence_over_sets(predictor: Predictor) -> None:
    """Sets say the solo step time is twice as long, the job alone that it is as predicted."""
    alone = ColocationSet("v100", (JOBS[0],))
    step_s = float(predictor.predict_arrays([alone]).solo_step_time_s[0, 0])
    posterior = Posterior(predictor)
    posterior.observe(observed(predictor, pairs(JOBS[:5]), {JOBS[0]: 2.0}, 1.0)[:4])
    posterior.observe([Observation(alone, 0, step_s)])
    other = ColocationSet("v100", (JOBS[1],))
    now, before = (float(p.predict_arrays([other]).solo_step_time_s[0, 0]) for p in (posterior, predictor))
    assert now == pytest.approx(before, rel=0.02)


def test_one_absurd_set_of_two_does_not_change_the_solo_step_time(predictor: Predictor) -> None:
    sets = pairs(JOBS[:3])[:2]
    told = observed(predictor, sets, {}, 1.0)
    told = [o for o in told if o.workload == JOBS[0]]
    absurd = Observation(told[1].colocation_set, told[1].member, 1e4 * told[1].step_time_s)
    posterior = Posterior(predictor)
    posterior.observe([told[0], absurd])
    alone = ColocationSet("v100", (JOBS[0],))
    now, before = (float(p.predict_arrays([alone]).solo_step_time_s[0, 0]) for p in (posterior, predictor))
    assert now == pytest.approx(before, rel=0.1)


def test_excess_jobs_are_sampled(predictor: Predictor) -> None:
    few = Posterior(predictor, PosteriorConfig(most_rows=3))
    few.observe(observed(predictor, pairs(JOBS), dict.fromkeys(JOBS, 1.5), 1.0))
    assert len(few.state.solo) == 3
    asked = pairs(JOBS)[:4]
    for sets in (asked, list(reversed(asked))):
        for prediction in few.predict_many(sets):
            assert all(member.step_time_s.lower > 0 for member in prediction.members)
