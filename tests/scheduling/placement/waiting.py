"""A cluster of two types with jobs that wait, as input of decisions about the queue."""

from __future__ import annotations

import numpy as np

from scheduling.core.job import JobState, TraceJob
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.state import SchedulingSnapshot
from tests.scheduling.tables import JOBS

CLUSTER = ClusterSnapshot.from_mapping(
    {
        "nodes": [
            {"name": "fast", "gpus": [{"device": "v100", "count": 2}]},
            {"name": "slow", "gpus": [{"device": "k80", "count": 2}]},
        ]
    }
)


def jobs(seed: int, count: int = 16, span_s: float = 0.0) -> list[TraceJob]:
    """Each workload at most once among jobs that may share: beside itself, a pair's columns look alike."""
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(JOBS), count)
    submit = np.sort(rng.uniform(0.0, span_s, count)) if span_s else np.zeros(count)
    return [
        TraceJob(f"j{k}", JOBS[p], float(rng.uniform(200, 3000)), float(submit[k]))
        for k, p in enumerate(picks)
    ]


def waiting(trace: list[TraceJob]) -> SchedulingSnapshot:
    state = SchedulingSnapshot(CLUSTER)
    for number, job in enumerate(trace):
        state.waiting[number] = JobState(job, number, job.iterations)
    return state
