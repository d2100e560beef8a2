from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling.errors import InputError
from profiling.workload import Workload
from scheduling.beliefs.table import Solo, TablePredictor
from scheduling.core.job import JobState, TraceJob
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot, Gpu, Node
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import SetTruth
from scheduling.placement.gangs import Pool, shortest_first
from scheduling.placement.queueing import QueueConfig, first_overdue, in_order
from scheduling.placement.ranking import PlacementConfig
from scheduling.policies import get_policy
from scheduling.policies.isacpp import decide, isacpp
from scheduling.simulator.engine import simulate
from tests.scheduling.tables import JOBS, table

LONG, SHORT = Workload("long"), Workload("short")
# one step a second, side by side as fast as alone; `long` beside anyone: no room
SIDE_BY_SIDE = TablePredictor(
    {("v100", w): Solo(1.0) for w in (LONG, SHORT)}, {("v100", (SHORT, SHORT)): (1.0, 1.0)}
)


def cluster(gpus: int) -> ClusterSnapshot:
    return ClusterSnapshot((Node("n", tuple(Gpu(str(k), "v100") for k in range(gpus))),))


def started_s(
    jobs: list[TraceJob], gpus: int, queue: QueueConfig, objective: str = "jct"
) -> dict[str, float]:
    belief = SetCache(SIDE_BY_SIDE)
    policy = isacpp(PlacementConfig(objective=objective, max_members=2), queue=queue)
    result = simulate(jobs, cluster(gpus), policy, SetTruth(belief), belief)
    return {job.id: float(job.started_s or 0.0) for job in result.jobs}


def test_queue_order() -> None:
    lengths = [300.0, 100.0, 50.0]  # of jobs with 0.1, 0.2 and 0.3 s a step: 30, 20 and 15 s

    def chosen(queue: QueueConfig, waited_s: float = 0.0) -> list[str]:
        state = SchedulingSnapshot(cluster(1))
        state.now_s = waited_s
        for number, steps in enumerate(lengths):
            state.waiting[number] = JobState(TraceJob(f"j{number}", JOBS[number], steps), number, steps)
        return [d.job.id for d in decide(state, SetCache(table(1)), PlacementConfig(max_members=1), queue)]

    assert chosen(QueueConfig("fifo", batch=1)) == ["j0"]
    assert chosen(QueueConfig("shortest", batch=1)) == ["j2"]
    assert chosen(QueueConfig("shortest", batch=1, aging_s=60.0), waited_s=59.0) == ["j2"]
    assert chosen(QueueConfig("shortest", batch=1, aging_s=60.0), waited_s=60.0) == ["j0"]


@pytest.mark.parametrize("order", ["fifo", "shortest"])
@pytest.mark.parametrize("objective", ["jct", "interference", "makespan"])
@pytest.mark.parametrize("gang", [1, 2])
def test_no_job_starves(order: str, objective: str, gang: int) -> None:
    # Two GPUs that short jobs keep shared: before one goes there is another, so that no GPU is ever empty.
    stream = [TraceJob(f"s{k}", SHORT, 200.0, 60.0 * k) for k in range(75)]
    jobs = [*stream, TraceJob("long", LONG, 1000.0, 100.0, gpus=gang)]
    bounded = started_s(jobs, 2, QueueConfig(order, aging_s=900.0), objective)["long"]
    assert bounded <= 1000.0 + 2 * 200.0
    if (
        gang == 2 or objective == "interference" or (order, objective) == ("shortest", "jct")
    ):  # else a GPU is kept
        for_ever = started_s(jobs, 2, QueueConfig(order, aging_s=math.inf), objective)["long"]
        assert for_ever > 4000.0  # when the stream is over
        assert bounded >= 1000.0


def test_a_job_too_large_for_the_cluster_does_not_block_the_queue() -> None:
    state = SchedulingSnapshot(cluster(2))
    state.now_s = 100.0
    for number, (workload, gpus) in enumerate(((LONG, 8), (SHORT, 1))):
        state.waiting[number] = JobState(TraceJob(f"j{number}", workload, 10.0, gpus=gpus), number, 10.0)
    overdue = first_overdue(state, SetCache(SIDE_BY_SIDE), 50.0)
    assert overdue is not None
    assert overdue.id == "j1"


@pytest.mark.parametrize(
    "wrong",
    [{"order": "random"}, {"batch": 0}, {"aging_s": -1.0}, {"aging_s": math.nan}, {"critical_ratio": 0}],
)
def test_settings_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        QueueConfig(**wrong)


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(1.0, 100.0), st.booleans()), max_size=30))
def test_the_queue_is_kept_in_order(changes: list[tuple[int, float, bool]]) -> None:
    """Jobs come and go, a belief learns, and a type turns out to be too small for a job."""
    belief, state = SetCache(table(1)), SchedulingSnapshot(cluster(1))
    for number, (kind, steps, other) in enumerate(changes):
        if other and state.waiting:
            job = state.waiting.pop(next(iter(state.waiting)))
            if kind < 3:  # it comes back with less to do
                job.left /= 2
                state.waiting[job.number] = job
            elif kind == 3:
                belief.forget()
            else:
                state.refused[JOBS[kind], 0] = 0.0
        else:
            job = JobState(TraceJob(f"j{number}", JOBS[kind], steps), number, steps)
            state.waiting[number] = job
        assert list(in_order(state, belief)) == shortest_first(state, belief, state.waiting.values())


def test_a_job_with_its_former_length_is_listed_once() -> None:
    """As where its believed length rises and falls again."""
    belief, state = SetCache(table(1)), SchedulingSnapshot(cluster(1))
    job = JobState(TraceJob("j", JOBS[0], 9.0), 0, 9.0)
    for left in (9.0, 8.0, 9.0):
        job.left = left
        state.waiting.pop(0, None)
        state.waiting[0] = job
        assert list(in_order(state, belief)) == [job]


@pytest.mark.parametrize("policy", ["exclusive", "sjf", "srtf", "blind", "horus"])
def test_a_job_like_one_that_found_no_gpus_is_not_looked_at(policy: str) -> None:
    looked: list[int] = []

    def counted(self: Pool, count: int, *arguments: Any, **options: Any) -> tuple[int, ...]:
        looked.append(count)
        return take(self, count, *arguments, **options)

    take = Pool.take
    state = SchedulingSnapshot(cluster(3))
    state.waiting[0] = JobState(TraceJob("first", LONG, 1.0), 0, 1.0)
    for number in range(1, 200):  # two GPUs are left, and nobody fits
        state.waiting[number] = JobState(TraceJob(f"j{number}", LONG, 9.0, gpus=3), number, 9.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pool, "take", counted)
        started = get_policy(policy).decide(state, SetCache(SIDE_BY_SIDE))
    assert [a.job.id for a in started] == ["first"]
    assert len(looked) <= 10


def test_what_was_derived_from_another_version_is_replaced() -> None:
    state = SchedulingSnapshot(cluster(1))
    made = [state.derived("key", lambda n=n: n, version) for n, version in enumerate("aabb")]
    assert made == [0, 0, 2, 2]
    assert state.derived("other", list) is state.derived("other", list)
