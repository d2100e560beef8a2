"""Deadlines and weights decide which jobs run first."""

from __future__ import annotations

import pytest

from scheduling.core.job import TraceJob
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.truth import SetTruth
from scheduling.policies import get_policy
from scheduling.simulator.engine import simulate
from scheduling.simulator.result import SimulationResult
from tests.scheduling.tables import JOBS, table

TABLE = table(2)
ONE = ClusterSnapshot.from_mapping({"nodes": [{"name": "n", "gpus": [{"device": "v100"}]}]})


def run(policy: str, jobs: list[TraceJob]) -> SimulationResult:
    return simulate(jobs, ONE, get_policy(policy), SetTruth(TABLE), TABLE)


def order(result: SimulationResult) -> list[str]:
    return [j.id for j in sorted(result.jobs, key=lambda j: j.finished_s or 0.0)]


def test_earliest_deadline_first() -> None:
    jobs = [
        TraceJob("long", JOBS[0], 5000.0, 0.0),
        TraceJob("none", JOBS[0], 10.0, 1.0),
        TraceJob("weighty", JOBS[0], 10.0, 1.0, priority=2.0),
        TraceJob("late", JOBS[0], 1000.0, 1.0, deadline_s=5000.0),
        TraceJob("soon", JOBS[0], 1000.0, 2.0, deadline_s=150.0),
    ]
    result = run("edf", jobs)
    assert order(result)[:2] == ["soon", "late"]
    assert order(result).index("weighty") < order(result).index("none")
    body = result.to_json()
    assert (body["deadlines"], body["deadlines_met_ratio"]) == (2, 1.0)
    assert run("fifo", jobs).to_json()["deadlines_met_ratio"] < 1.0


@pytest.mark.parametrize("policy", ["sjf", "srtf", "isacpp"])
def test_weight_divides_the_time_left(policy: str) -> None:
    def jobs(weight: float) -> list[TraceJob]:
        head = TraceJob("head", JOBS[0], 100.0, 0.0, preemptible=False)
        # model-5 is 6 times slower than model-0, and too large to share with itself
        return [
            head,
            TraceJob("short", JOBS[5], 100.0, 1.0),
            TraceJob("heavy", JOBS[5], 300.0, 1.0, priority=weight),
        ]

    assert order(run(policy, jobs(1.0))) == ["head", "short", "heavy"]
    assert order(run(policy, jobs(4.0))) == ["head", "heavy", "short"]
