"""Conservation laws under every policy, by a count of work and capacity of the test's own."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.job import Allocation, JobState, TraceJob
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import SetTruth
from scheduling.policies import POLICIES, get_policy
from scheduling.ring.scatter import RingScatter
from scheduling.simulator.engine import SimulationConfig, simulate
from scheduling.simulator.realism import Realism
from scheduling.simulator.result import SimulationResult
from tests.scheduling.tables import GIB, JOBS, table

TABLE = table(3)
ROOM = {"v100": 16.0 * GIB, "k80": 12.0 * GIB}
MEMORY = {job: (10.0 if number == 5 else 2.0) * GIB for number, job in enumerate(JOBS)}
# Nodes of one, two and three GPUs, one with two types: gangs of four span nodes.
CLUSTER = ClusterSnapshot.from_mapping(
    {
        "nodes": [
            {"name": "a", "gpus": [{"device": "v100", "count": 2}, {"device": "k80"}]},
            {"name": "b", "gpus": [{"device": "v100"}]},
            {"name": "c", "gpus": [{"device": "k80", "count": 3}]},
            {"name": "d", "gpus": [{"device": "v100"}]},
        ],
        "links": [
            {"source": n, "target": s, "bandwidth_bytes_per_s": 1e9} for n, s in ("ax", "bx", "cy", "dy")
        ],
    }
)
ROUGH = replace(Realism.of(["all"]), node_mtbf_s=4000.0, repair_s=600.0, checkpoint_s=300.0)


@st.composite
def traces(draw: st.DrawFn) -> list[TraceJob]:
    """Gangs, equal arrivals, short and long jobs, deadlines, weights, ranges, jobs that may not be stopped."""
    jobs = []
    for number in range(draw(st.integers(1, 9))):
        gpus = draw(st.sampled_from([1, 1, 1, 2, 3, 4]))
        resized = draw(st.booleans())
        jobs.append(
            TraceJob(
                f"j{number}", draw(st.sampled_from(JOBS)), draw(st.floats(1e-3, 3e3)),
                draw(st.sampled_from([0.0, 0.0, 1.0, 60.0, 359.0, 5000.0])), gpus,
                1 if resized else None, draw(st.integers(gpus, 8)) if resized else None,
                user=draw(st.sampled_from("ab")), preemptible=draw(st.integers(0, 5)) > 0,
                priority=draw(st.sampled_from([1.0, 0.5, 4.0])),
                deadline_s=draw(st.sampled_from([None, 1.0, 400.0, 1e5])),
            )
        )  # fmt: skip
    return jobs


def watched(policy: Policy) -> Policy:
    """The same policy, with checks of the cluster whenever it is queried."""

    def decide(snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
        held = defaultdict(list)
        for job in snapshot.running.values():
            assert job.number not in snapshot.waiting
            assert job.finished_s is None
            assert job.job.submit_s <= snapshot.now_s
            low, high = job.job.gpu_range
            assert low <= len(set(job.gpus)) == len(job.gpus) <= high
            assert len({snapshot.devices[g] for g in job.gpus}) == 1
            for gpu in job.gpus:
                held[gpu].append(job)
        for gpu, tenants in enumerate(snapshot.tenants):
            real = [t for t in tenants if t.number in snapshot.running]
            assert sorted(t.number for t in held[gpu]) == sorted(t.number for t in real)
            assert sum(MEMORY[t.job.workload] for t in real) <= ROOM[snapshot.devices[gpu]]
        decisions = policy.decide(snapshot, belief)
        for decision in decisions:
            held_by = decision.job
            assert held_by.job.preemptible or not held_by.gpus or set(decision.gpus) == set(held_by.gpus)
            assert snapshot.down.isdisjoint(decision.gpus)
        return decisions

    return replace(policy, decide=decide)


class Counted(SetTruth):
    """Keeps every rate that a job was given."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(TABLE, *args, **kwargs)  # type: ignore[arg-type]
        self.rates: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def segment(self, job: JobState, snapshot: SchedulingSnapshot):  # type: ignore[no-untyped-def]
        segment = super().segment(job, snapshot)
        self.rates[job.id].append((snapshot.now_s, segment.rate))
        return segment


def _run(name: str, jobs: list[TraceJob], realism: Realism | None) -> tuple[SimulationResult, Counted]:
    truth = Counted(
        scatter=None if realism is None else RingScatter(realism.scatter_slowdown, lambda _: 2e8).slowdown,
        restart_bytes_per_s=float("inf") if realism is None else realism.restart_bytes_per_s,
    )
    config = SimulationConfig(record=True, realism=realism, seed=3)
    return simulate(jobs, CLUSTER, watched(get_policy(name)), truth, TABLE, config), truth


def _work(result: SimulationResult, truth: Counted, job: JobState) -> tuple[float, float]:
    """Iterations done on GPUs, from the rates and the times on GPUs, and those that outlast every stop.

    What was done since the last checkpoint is lost at a stop.
    """
    work = kept = 0.0
    # A job may be stopped at the moment at which it was placed, or a rounding error later, before it has a rate.
    held = (i for i in result.intervals if i.job == job.number and i.start_s < i.stop_s)
    spans = sorted({(i.start_s, i.stop_s) for i in held})
    changes = truth.rates[job.id]
    for start, stop in spans:
        own = [(at, rate) for at, rate in changes if start <= at < stop]
        ends = [at for at, _ in own[1:]] + [stop]
        work += sum(rate * (end - at) for (at, rate), end in zip(own, ends, strict=False))
        until = stop
        if own and stop != spans[-1][1]:
            until = own[0][0] + (stop - own[0][0]) // ROUGH.checkpoint_s * ROUGH.checkpoint_s
        kept += sum(rate * max(min(end, until) - at, 0.0) for (at, rate), end in zip(own, ends, strict=False))
    return work, kept


def fastest_s(job: TraceJob) -> float:
    """Least seconds in which the job can end: alone on the fastest type, with as many GPUs as it may have."""
    step_s = min(TABLE.solo[device, job.workload].step_time_s for device in ROOM)
    return job.iterations * step_s / max(job.gpu_range[1] / job.gpus, 1.0)


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=3, deadline=None)
@given(jobs=traces(), disturbed=st.booleans())
def test_work_is_done_once_and_nothing_is_overfull(name: str, jobs: list[TraceJob], disturbed: bool) -> None:
    disturbed = disturbed and not get_policy(name).freezes
    result, truth = _run(name, jobs, ROUGH if disturbed else None)
    again, _ = _run(name, jobs, ROUGH if disturbed else None)
    assert [j.finished_s for j in result.jobs] == [j.finished_s for j in again.jobs]
    busy_s = 0.0
    for gpu in range(len(result.gpu_names)):
        edges = sorted((i.start_s, i.stop_s) for i in result.intervals if i.gpu == gpu)
        until = 0.0
        for start, stop in edges:
            busy_s += max(stop - max(start, until), 0.0)
            until = max(until, stop)
    assert result.busy_s == pytest.approx(busy_s)
    for job in result.jobs:
        assert job.finished_s is not None
        if disturbed:
            work, kept = _work(result, truth, job)
            assert work >= job.real_iterations * (1 - 1e-6)
            if not get_policy(name).saves:
                assert kept == pytest.approx(job.real_iterations, rel=1e-6)
            continue
        assert _work(result, truth, job)[0] == pytest.approx(job.job.iterations, rel=1e-6)
        assert job.finished_s >= job.job.submit_s + fastest_s(job.job) * (1 - 1e-9)
        held_s = sum(i.stop_s - i.start_s for i in result.intervals if i.job == job.number)
        assert job.attained_gpu_s == pytest.approx(held_s)
