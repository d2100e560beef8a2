"""Themis' leases and Tiresias' promotion."""

from __future__ import annotations

from functools import partial

import pytest

from scheduling.core.job import TraceJob
from scheduling.core.policy import Policy
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.truth import SetTruth
from scheduling.policies import get_policy, themis, tiresias
from scheduling.simulator.engine import simulate
from scheduling.simulator.result import SimulationResult
from tests.scheduling.tables import JOBS, table

TABLE = table(2)
ONE = ClusterSnapshot.from_mapping({"nodes": [{"name": "n", "gpus": [{"device": "v100"}]}]})


def run(policy: Policy, jobs: list[TraceJob]) -> SimulationResult:
    return simulate(jobs, ONE, policy, SetTruth(TABLE), TABLE)


def test_a_lease_bounds_restarts() -> None:
    jobs = [TraceJob(f"j{k}", JOBS[0], 60_000.0, 0.0) for k in range(3)]  # 6,000 s each
    leased = run(get_policy("themis"), jobs)
    hasty = run(Policy("hasty", partial(themis.decide, lease_s=60.0), 60.0, preemptive=True), jobs)
    assert all(j.finished_s is not None for j in leased.jobs)
    restarts, without = (sum(j.restarts for j in r.jobs) for r in (leased, hasty))
    # A lease of 1,200 s: no more changes of hands than leases in the whole run.
    assert 0 < restarts <= leased.makespan_s / themis.LEASE_S
    assert restarts < without / 4


def test_long_waiting_jobs_are_promoted(monkeypatch: pytest.MonkeyPatch) -> None:
    # A job of the second queue against a stream of short ones that are always in the first.
    jobs = [TraceJob("old", JOBS[0], 60_000.0, 0.0)]
    jobs += [TraceJob(f"s{k}", JOBS[0], 20_000.0, 3_700.0 + 1_900.0 * k) for k in range(40)]
    promoted = run(get_policy("tiresias"), jobs)
    monkeypatch.setattr(tiresias, "PROMOTION", float("inf"))
    starved = run(get_policy("tiresias"), jobs)
    assert promoted.jobs[0].finished_s is not None
    assert starved.jobs[0].finished_s is not None
    assert promoted.jobs[0].finished_s < starved.jobs[0].finished_s
