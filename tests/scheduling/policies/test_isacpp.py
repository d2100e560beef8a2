from __future__ import annotations

from itertools import combinations_with_replacement, permutations

import pytest

from profiling.errors import UnknownNameError
from profiling.workload import Workload
from scheduling.beliefs.table import Solo, TablePredictor
from scheduling.core.job import Allocation, JobState, TraceJob
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot, Gpu, Node, Tenant
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement import pairing
from scheduling.placement.guard import Proposal
from scheduling.placement.queueing import QueueConfig
from scheduling.placement.ranking import PlacementConfig
from scheduling.policies import get_policy, isacpp
from scheduling.policies.isacpp import decide
from tests.scheduling.placement.plain_stages import quantify
from tests.scheduling.tables import JOBS, table


def snapshot(*gpus: Gpu) -> SchedulingSnapshot:
    return SchedulingSnapshot(ClusterSnapshot((Node("n", tuple(gpus)),)))


def queue(state: SchedulingSnapshot, *jobs: TraceJob) -> None:
    for number, job in enumerate(jobs):
        state.waiting[number] = JobState(job, number, job.iterations)


def test_waiting_jobs_are_assigned_jointly() -> None:
    predictor = table(2)
    gpus = [Gpu(str(k), "v100", tenants=(Tenant(JOBS[k], 500.0 + 100 * k),)) for k in range(3)]
    state = snapshot(*gpus)
    jobs = [TraceJob(f"j{k}", JOBS[(k + 2) % 5], 300.0 + 150 * k) for k in range(3)]
    queue(state, *jobs)
    config = PlacementConfig(max_members=2, wait=False, max_slowdown=100)
    decisions = decide(state, SetCache(predictor), config)

    def cost(job: TraceJob, gpu: Gpu) -> float:
        q = quantify(predictor, "v100", gpu.tenants, job.workload, job.iterations)
        return q.finish_s + sum(q.delays_s)

    best = min(
        permutations(range(3)),
        key=lambda order: sum(cost(j, gpus[g]) for j, g in zip(jobs, order, strict=True)),
    )
    assert {d.job.id: d.gpus for d in decisions} == {f"j{k}": (g,) for k, g in enumerate(best)}


def test_of_equal_scores_the_least_time_alone_decides() -> None:
    """All scores on empty GPUs are 0: the long job gets the fast one, and of three jobs the longest waits."""
    k80_last = snapshot(Gpu("0", "v100"), Gpu("1", "k80"))
    lengths = {"short": 100.0, "long": 1000.0, "longest": 5000.0}
    queue(k80_last, *(TraceJob(name, JOBS[0], length) for name, length in lengths.items()))
    config = PlacementConfig(objective="interference", max_members=2)
    decisions = decide(k80_last, SetCache(table(2)), config, restart_s=None)
    assert {d.job.id: d.gpus for d in decisions} == {"short": (1,), "long": (0,)}


def test_gangs_get_whole_gpus_and_jobs_share_the_rest() -> None:
    state = snapshot(*(Gpu(str(k), "v100") for k in range(4)))
    queue(
        state,
        TraceJob("gang", JOBS[0], 100.0, gpus=2),
        *(TraceJob(f"s{k}", JOBS[k], 100.0) for k in range(2)),
    )
    decisions = {d.job.id: d.gpus for d in decide(state, SetCache(table()), PlacementConfig(max_members=2))}
    assert len(decisions["gang"]) == 2
    assert len({g for gpus in decisions.values() for g in gpus}) == 4


def test_a_job_waits_for_a_bad_neighbour_to_leave() -> None:
    a, b = Workload("a"), Workload("b")
    predictor = TablePredictor(
        {("v100", a): Solo(1.0), ("v100", b): Solo(1.0)}, {("v100", (a, b)): (0.51, 0.51)}
    )
    state = snapshot(Gpu("0", "v100", tenants=(Tenant(b, 10.0),)))
    queue(state, TraceJob("a", a, 1000.0))
    assert decide(state, SetCache(predictor), PlacementConfig(max_members=2)) == []


def test_a_job_longer_than_all_work_spread_over_the_gpus_goes_first_and_is_not_stopped() -> None:
    predictor = table()
    short = [TraceJob(f"s{k}", JOBS[0], 200.0) for k in range(2)]  # 20 s each
    state = snapshot(Gpu("0", "v100"), Gpu("1", "v100", tenants=(Tenant(JOBS[5], 10.0),)))
    queue(state, *short, TraceJob("long", JOBS[4], 1000.0))  # 500 s, of 273 on each of two GPUs

    def first(ratio: float) -> str:
        allocations = decide(
            state,
            SetCache(predictor),
            PlacementConfig(max_members=1),
            QueueConfig(critical_ratio=ratio),
        )
        return {a.gpus: a.job.id for a in allocations}[(0,)]

    assert first(1.5) == "long"
    assert first(2.0) == first(float("inf")) == "s0"


def test_what_a_discarded_decision_accepts_is_offered_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster that counts as large, where a pair refused once is not evaluated again at once."""
    monkeypatch.setattr(pairing, "_ALWAYS", 0)
    ratios = {("v100", pair): (0.9, 0.9) for pair in combinations_with_replacement(JOBS[:3], 2)}
    predictor = TablePredictor({("v100", job): Solo(1.0) for job in JOBS[:3]}, ratios)
    state = snapshot(*(Gpu(str(k), "v100", tenants=(Tenant(JOBS[k], 5000.0),)) for k in range(2)))
    queue(state, *(TraceJob(f"j{k}", JOBS[2], 1000.0 + k) for k in range(3)))
    belief, proposed = SetCache(predictor), list[list[Allocation]]()

    def all_discarded(
        _: SchedulingSnapshot, __: SetCache, proposals: list[Proposal], *___: float
    ) -> list[Allocation]:
        proposed.extend(propose() for propose in proposals)
        return []

    with monkeypatch.context() as patch:
        patch.setattr(isacpp, "guarded", all_discarded)
        assert decide(state, belief) == []
    assert all(len(decisions) == 2 for decisions in proposed)
    state.now_s = 10.0
    assert decide(state, belief) == proposed[0]


def test_unknown_policy() -> None:
    with pytest.raises(UnknownNameError, match="lists all"):
        get_policy("best")
