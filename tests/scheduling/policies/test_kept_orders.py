"""Policies that keep their queue in order decide as if they sorted all jobs each time, but look at few."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from scheduling.core.job import Allocation, JobState, TraceJob
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot, Gpu, Node
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import SetTruth
from scheduling.placement.admission import admit_by_priority
from scheduling.placement.gangs import shortest_first
from scheduling.policies import edf, get_policy, tiresias
from scheduling.simulator.engine import simulate
from tests.scheduling.tables import JOBS, table

TABLE = table(2)
CLUSTER = ClusterSnapshot(
    tuple(Node(f"n{m}", tuple(Gpu(str(k), "v100") for k in range(4))) for m in range(2))
)


def sorted_edf(snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
    def due(job: JobState) -> tuple[float, float, int]:
        deadline = job.job.deadline_s
        due_s = float("inf") if deadline is None else job.job.submit_s + deadline
        return due_s, -job.job.priority, job.number

    return admit_by_priority(snapshot, belief, sorted(snapshot.active(), key=due))


def sorted_srtf(snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
    return admit_by_priority(snapshot, belief, shortest_first(snapshot, belief, snapshot.active()))


def sorted_tiresias(snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
    if not snapshot.waiting:
        return []
    forgiven: dict[int, float] = snapshot.derived("forgiven", dict)

    def place(job: JobState) -> tuple[int, int]:
        attained = snapshot.attained_gpu_s(job)
        since = attained - forgiven.get(job.number, 0.0)
        waited_s = 0.0 if job.gpus else snapshot.now_s - job.waiting_since_s
        if since >= tiresias.THRESHOLDS_GPU_S[0] and waited_s >= tiresias.PROMOTION * since / job.job.gpus:
            forgiven[job.number], since = attained, 0.0
        return bisect_right(tiresias.THRESHOLDS_GPU_S, since), job.number

    return admit_by_priority(snapshot, belief, sorted(snapshot.active(), key=place))


@pytest.mark.parametrize(
    ("name", "decide", "round_s"),
    [("edf", sorted_edf, None), ("srtf", sorted_srtf, None), ("tiresias", sorted_tiresias, 60.0)],
)
def test_the_same_jobs_run_at_the_same_times(name: str, decide: Any, round_s: float | None) -> None:
    drawn = np.random.default_rng(3)
    jobs = [
        TraceJob(
            f"j{k}", JOBS[int(drawn.integers(6))], float(drawn.lognormal(9.5, 1.5)), float(drawn.uniform(0, 9e4)),
            gpus=int(drawn.choice([1, 2, 4])), priority=float(drawn.choice([1, 2])),
            deadline_s=float(drawn.uniform(3e3, 3e5)) if drawn.random() < 0.5 else None,
        )
        for k in range(250)
    ]  # fmt: skip
    kept = simulate(jobs, CLUSTER, get_policy(name), SetTruth(TABLE), TABLE)
    resorted = simulate(jobs, CLUSTER, Policy(name, decide, round_s), SetTruth(TABLE), TABLE)
    assert sum(job.restarts for job in kept.jobs) > 50
    assert [(j.started_s, j.finished_s, j.restarts) for j in kept.jobs] == [
        (j.started_s, j.finished_s, j.restarts) for j in resorted.jobs
    ]


@pytest.mark.parametrize("policy", ["edf", "tiresias"])
def test_a_waiting_job_is_looked_at_once(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            looked.append(arguments[-1].number)
            return function(*arguments)

        return call

    state, belief = SchedulingSnapshot(CLUSTER), SetCache(TABLE)
    for number in range(200):
        state.waiting[number] = JobState(TraceJob(f"j{number}", JOBS[0], 9.0), number, 9.0)
    get_policy(policy).decide(state, belief)
    monkeypatch.setattr(SchedulingSnapshot, "attained_gpu_s", counted(SchedulingSnapshot.attained_gpu_s))
    monkeypatch.setattr(edf, "_urgency", counted(edf._urgency))
    state.waiting[200] = JobState(TraceJob("new", JOBS[0], 9.0), 200, 9.0)
    get_policy(policy).decide(state, belief)
    assert 200 in looked
    assert len(looked) < 50
