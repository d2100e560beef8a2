from __future__ import annotations

import numpy as np
import pytest

from profiling.workload import Workload
from scheduling.beliefs.table import Solo, TablePredictor
from scheduling.core.job import JobState, TraceJob
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.truth import SetTruth
from scheduling.placement import migrating
from scheduling.placement.ranking import PlacementConfig
from scheduling.policies.isacpp import isacpp
from scheduling.simulator.engine import simulate
from tests.scheduling.tables import JOBS, table

CLUSTER = ClusterSnapshot.from_mapping(
    {
        "nodes": [
            {"name": "fast", "gpus": [{"device": "v100", "count": 4}]},
            {"name": "slow", "gpus": [{"device": "k80", "count": 4}]},
        ]
    }
)


def _ends(seed: int) -> list[float | None]:
    rng = np.random.default_rng(seed)
    jobs = [
        TraceJob(f"j{k}", JOBS[int(rng.integers(5))], float(rng.uniform(20, 200)), float(rng.uniform(0, 120)))
        for k in range(24)
    ]
    policy = isacpp(PlacementConfig(max_members=2), restart_s=1.0)
    result = simulate(jobs, CLUSTER, policy, SetTruth(SetCache(table()), restart_s=1.0), table())
    assert sum(job.restarts for job in result.jobs) > 0  # somebody moved
    return [job.finished_s for job in result.jobs]


@pytest.mark.parametrize("seed", [1, 3, 4, 12])
def test_reexamining_only_changed_gpus_gives_the_same_decisions(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    always = _ends(seed)
    monkeypatch.setattr(migrating, "_ALWAYS", 0)
    assert _ends(seed) == always


A = Workload("a")
TABLE = TablePredictor({("v100", A): Solo(1.0), ("k80", A): Solo(4.0)}, {})


def run(*jobs: TraceJob) -> list[JobState]:
    policy = isacpp(PlacementConfig(max_members=2))
    truth = SetTruth(SetCache(TABLE), restart_s=30.0)
    return simulate(jobs, CLUSTER, policy, truth, TABLE).jobs


def test_a_job_starts_on_a_slow_gpu_and_moves_to_a_fast_one_that_becomes_empty() -> None:
    on_fast = [TraceJob(f"f{k}", A, 1000.0) for k in range(4)]
    last = run(*on_fast, TraceJob("last", A, 600.0, 1.0))[-1]
    assert last.started_s == 1.0
    assert last.restarts == 1
    assert last.finished_s == pytest.approx(1000.0 + 30.0 + 600.0 - 999.0 / 4, abs=1.0)


def test_a_gang_on_slow_gpus_moves_to_fast_ones() -> None:
    on_fast = TraceJob("fast", A, 1000.0, gpus=4)
    gang = run(on_fast, TraceJob("gang", A, 600.0, 1.0, gpus=4))[1]
    assert gang.restarts == 1
    assert gang.finished_s == pytest.approx(1000.0 + 30.0 + 600.0 - 999.0 / 4, abs=1.0)


def test_a_job_that_is_nearly_done_stays() -> None:
    on_fast = TraceJob("fast", A, 1000.0, gpus=4)
    gang = run(on_fast, TraceJob("gang", A, 260.0, 1.0, gpus=4))[1]  # 41 s left after 1,000 s
    assert gang.restarts == 0
    assert gang.finished_s == pytest.approx(1041.0)


def test_a_job_that_cannot_be_moved_stays() -> None:
    on_fast = TraceJob("fast", A, 1000.0, gpus=4)
    gang = run(on_fast, TraceJob("gang", A, 600.0, 1.0, gpus=4, preemptible=False))[1]
    assert gang.restarts == 0
