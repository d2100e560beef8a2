"""Learning from the pace of jobs that share a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from predictor.examples.featurizer import shared_featurizer
from predictor.types import PredictionArrays
from profiling.workload import ColocationSet, Workload
from scheduling.beliefs.posterior import PosteriorLearner
from scheduling.beliefs.table import Solo, TablePredictor
from scheduling.core.job import JobState, TraceJob
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import SetTruth
from scheduling.policies import get_policy
from scheduling.policies.online import _Learning
from scheduling.simulator.engine import simulate
from tests.scheduling.tables import JOBS, table

CLUSTER = ClusterSnapshot.from_mapping(
    {"nodes": [{"name": "node", "gpus": [{"device": "v100", "count": 2}]}]}
)


class Told:
    """A predictor with the same slowdown for every member of a set of two or more."""

    def __init__(self, truth: TablePredictor, slowdown: float, fits: bool = True) -> None:
        self.truth, self.slowdown, self.fits = truth, slowdown, fits

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        answer = self.truth.predict_arrays(sets)
        slow = np.where(answer.mask.sum(1, keepdims=True) > 1, self.slowdown, 1.0) * np.ones(
            answer.mask.shape
        )
        fits = np.full(len(sets), self.fits)
        return replace(answer, slowdown=slow, step_time_s=answer.solo_step_time_s * slow, fits=fits)


def running(
    truth: TablePredictor, pairs: Sequence[tuple[Workload, Workload]], now_s: float
) -> SchedulingSnapshot:
    """Every pair on a separate GPU at its true pace since second 0."""
    snapshot = SchedulingSnapshot(
        ClusterSnapshot.from_mapping(
            {"nodes": [{"name": "n", "gpus": [{"device": "v100", "count": len(pairs)}]}]}
        )
    )
    snapshot.now_s = now_s
    for gpu, members in enumerate(pairs):
        order = sorted(members, key=str)
        steps = truth.predict_arrays([ColocationSet("v100", tuple(order))]).step_time_s[0]
        for k, (member, step) in enumerate(zip(order, steps, strict=True)):
            state = JobState(
                TraceJob(f"{gpu}-{k}", member, 1e6), 10 * gpu + k, 1e6, rate=1 / step, gpus=(gpu,)
            )
            snapshot.running[state.number] = state
            snapshot.occupy(state)
    return snapshot


def test_an_observed_set_is_predicted_nearly_as_observed_and_others_improve() -> None:
    solo = {("v100", j): Solo(0.1 * (k + 1)) for k, j in enumerate(JOBS)}
    ratios = {("v100", (a, b)): (0.9, 0.9) for a in JOBS for b in JOBS}
    truth = TablePredictor(solo, ratios)
    belief = PosteriorLearner(Told(truth, 1.5))
    seen, unseen = [(JOBS[0], JOBS[1]), (JOBS[1], JOBS[2])], ColocationSet("v100", (JOBS[3], JOBS[4]))
    before = belief.predict_arrays([unseen]).slowdown[0, 0]
    assert before == pytest.approx(1.5)
    snapshot = running(truth, seen, now_s=0.0)
    revisions = []
    for now_s in (0.0, 5.0, 5.0):  # jobs that were put together this moment have not done a step
        snapshot.now_s = now_s
        belief.observe(snapshot)
        revisions.append(belief.revision)
    assert revisions == [0, 1, 1]
    answer = belief.predict_arrays([ColocationSet("v100", s) for s in seen] + [unseen])
    assert answer.slowdown[:2] == pytest.approx(1 / 0.9, rel=0.05)
    assert 1 / 0.9 - 0.1 < answer.slowdown[2, 0] < 1.48
    # another sharing mode was not seen and moves less, and a job alone is as fast as ever
    other = belief.predict_arrays(
        [ColocationSet("v100", unseen.workloads, "mps"), ColocationSet("v100", JOBS[:1])]
    )
    assert answer.slowdown[2, 0] < other.slowdown[0, 0] + 1e-9
    assert other.slowdown[0, 0] <= 1.5
    assert other.slowdown[1, 0] == 1.0


def test_cached_predictions_are_dropped_after_learning() -> None:
    truth = table()
    pair = (JOBS[0], JOBS[1])
    learning = _Learning.of(PosteriorLearner(Told(truth, 1.9)))
    cache = learning.cache
    ids = np.array([[cache.workload_id(j) for j in pair]])
    where = (np.array([cache.device_id("v100")]), ids, np.ones((1, 2), bool))
    row = cache.rows(*where)  # first: it grows the cache's arrays
    assert cache.step_time_s[row, 0] == pytest.approx(0.1 * 1.9)
    learning.observe(running(truth, [pair], now_s=5.0))
    seen = truth.predict_arrays([ColocationSet("v100", pair)]).step_time_s[0, 0]
    row = cache.rows(*where)
    assert cache.step_time_s[row, 0] == pytest.approx(seen, rel=0.05)


@pytest.mark.parametrize("ratio", [0.3, 0.7])
def test_jobs_slower_together_than_in_turn_are_separated(ratio: float) -> None:
    """At 0.3 each, two jobs do 0.6 of one job's work together; the predictor expected 1.8."""
    solo = {("v100", j): Solo(1.0) for j in JOBS}
    ratios = {("v100", (a, b)): (ratio, ratio) for a in JOBS for b in JOBS}
    truth = TablePredictor(solo, ratios)
    jobs = [TraceJob(f"job-{k}", JOBS[k], 1000.0, float(k)) for k in range(5)]
    blindly, learned = (
        simulate(jobs, CLUSTER, get_policy(name), SetTruth(truth), Told(truth, 1.1))
        for name in ("isacpp", "isacpp-online")
    )
    assert all(j.finished_s is not None for j in learned.jobs)
    restarts = sum(j.restarts for j in learned.jobs)
    if ratio < 0.5:
        assert restarts > 0
        assert learned.makespan_s < 0.8 * blindly.makespan_s
    else:
        assert restarts == 0


@pytest.mark.parametrize("name", ["exclusive", "blind", "isacpp", "isacpp-makespan", "isacpp-online"])
def test_a_job_that_seems_to_fit_nowhere_is_tried_where_memory_is_largest(name: str) -> None:
    truth = table()
    jobs = [TraceJob(f"job-{k}", JOBS[k % 5], 100.0, float(k)) for k in range(8)]
    mixed = ClusterSnapshot.from_mapping(
        {"nodes": [{"name": "node", "gpus": [{"device": "k80", "count": 1}, {"device": "v100", "count": 2}]}]}
    )
    done = simulate(jobs, mixed, get_policy(name), SetTruth(truth), Told(truth, 1.2, fits=False))
    assert all(j.finished_s is not None for j in done.jobs)
    assert all(set(j.served_s) == {"v100"} for j in done.jobs)


def test_exploration_favours_unknown_sets() -> None:
    solo = {("v100", j): Solo(0.1 * (k + 1)) for k, j in enumerate(JOBS)}
    truth = TablePredictor(solo, {("v100", (a, b)): (0.9, 0.9) for a in JOBS for b in JOBS})
    plain, bold = (PosteriorLearner(Told(truth, 1.5), exploration=e) for e in (0.0, 0.5))
    seen, unseen = (JOBS[0], JOBS[1]), ColocationSet("v100", (JOBS[3], JOBS[4]))
    asked = [ColocationSet("v100", seen), unseen, ColocationSet("v100", JOBS[:1])]
    for belief in (plain, bold):
        belief.observe(running(truth, [seen], now_s=5.0))
    mean, optimistic = (belief.predict_arrays(asked) for belief in (plain, bold))
    hoped = (mean.slowdown / optimistic.slowdown)[:, 0]
    assert hoped[1] > hoped[0] >= 1.0
    assert hoped[2] == 1.0
    assert optimistic.step_time_s[1] == pytest.approx(optimistic.solo_step_time_s[1] * optimistic.slowdown[1])


def test_with_graphs_a_job_learns_more_from_a_similar_one() -> None:
    near, seen, far = (
        Workload.parse(f"{name}:batch_size={size}")
        for name, size in (("resnet50-imagenet", 64), ("resnet50-imagenet", 32), ("lstm-wikitext2", 5))
    )
    jobs = (near, seen, far)
    truth = TablePredictor(
        {("v100", j): Solo(0.1) for j in jobs}, {("v100", (a, b)): (0.4, 0.4) for a in jobs for b in jobs}
    )
    asked = [ColocationSet("v100", (job, job)) for job in (near, far)]
    moved = {}
    for featurizer in (None, shared_featurizer()):
        belief = PosteriorLearner(Told(truth, 1.1), featurizer=featurizer)
        belief.observe(running(truth, [(seen, seen)], now_s=5.0))
        moved[featurizer is None] = belief.predict_arrays(asked).slowdown[:, 0] - 1.1
    assert moved[False][0] > 1.3 * moved[True][0] > 0.0
    assert moved[False][0] > 1.3 * moved[False][1]
