from __future__ import annotations

import numpy as np
import pytest

from profiling.workload import Workload
from scheduling.beliefs.table import Solo, TablePredictor
from scheduling.core.job import Allocation, JobState, TraceJob
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import SetTruth
from scheduling.placement.plain_schedule import Outcome, PlainRule, Steps
from scheduling.placement.projection import Projection
from scheduling.policies import get_policy
from scheduling.simulator.engine import simulate
from tests.scheduling.placement.waiting import CLUSTER, jobs, waiting
from tests.scheduling.tables import table

A = Workload("a")
# A takes 1 s per step on a V100, 4 s on a K80; two of it on a GPU take twice as long each.
BELIEF = TablePredictor(
    {("v100", A): Solo(1.0), ("k80", A): Solo(4.0)},
    {("v100", (A, A)): (0.5, 0.5), ("k80", (A, A)): (0.5, 0.5)},
)


@pytest.mark.parametrize("seed", range(4))
def test_the_projection_equals_a_simulation_of_sjf(seed: int) -> None:
    trace, belief = jobs(seed), SetCache(table(seed))
    state = waiting(trace)
    result = simulate(trace, CLUSTER, get_policy("sjf"), SetTruth(belief), belief)
    schedule, started = Projection(state, belief, Steps(state, belief, 1e9), 30.0).schedule(
        [], PlainRule(pack=False)
    )
    outcome = schedule.outcome()
    assert len(started) == 4
    assert outcome.end_s == pytest.approx(result.makespan_s)
    assert outcome.mean_s == pytest.approx(float(result.completion_s.mean()))


def test_a_copy_leaves_the_schedule_unchanged() -> None:
    trace, belief = jobs(1), SetCache(table(1))
    state = waiting(trace)
    schedule, _ = Projection(state, belief, Steps(state, belief, 1e9), 30.0).schedule(
        [], PlainRule(pack=True)
    )
    first = schedule.copy().outcome()
    assert schedule.now_s == 0.0
    assert schedule.copy().outcome() == first


def cluster(**counts: int) -> SchedulingSnapshot:
    gpus = [{"device": device, "count": count} for device, count in counts.items()]
    return SchedulingSnapshot(ClusterSnapshot.from_mapping({"nodes": [{"name": "n", "gpus": gpus}]}))


def queue(state: SchedulingSnapshot, *lengths: float) -> None:
    for number, length in enumerate(lengths):
        state.waiting[number] = JobState(TraceJob(f"j{number}", A, length), number, length)


def follow(
    state: SchedulingSnapshot, rule: PlainRule, *decisions: Allocation, table: TablePredictor = BELIEF
) -> tuple[Outcome, dict[int, tuple[int, ...]]]:
    belief = SetCache(table)
    projection = Projection(state, belief, Steps(state, belief, 1e9), 30.0)
    schedule, started = projection.schedule(decisions, rule)
    return schedule.outcome(), started


@pytest.mark.parametrize("count", [99, 100, 250])
def test_the_99th_percentile_counts_from_100_jobs_on(count: int) -> None:
    state = cluster(v100=1)
    queue(state, *[1.0] * count)
    outcome, _ = follow(state, PlainRule(pack=False))
    assert outcome.tail_s == count - 0.5
    ends = np.arange(1.0, count + 1.0)
    assert outcome.p99_s == pytest.approx(np.percentile(ends, 99) if count >= 100 else 0.0)


def test_a_critical_job_goes_first() -> None:
    state = cluster(v100=2)
    queue(state, 100.0, 100.0, 100.0, 400.0)  # 350 s of work on each GPU
    last, _ = follow(state, PlainRule(pack=False))
    assert last.end_s == 500.0
    first, started = follow(state, PlainRule(pack=False, critical_ratio=1.0))
    assert first.end_s == 400.0
    assert set(started) == {3, 0}
    # At a ratio of 1.5 the job would have to take more than 525 s.
    assert follow(state, PlainRule(pack=False, critical_ratio=1.5))[0] == last


def test_gpus_that_no_job_can_use_make_no_job_critical() -> None:
    too_large = TablePredictor(
        {("v100", A): Solo(1.0), ("k80", A): Solo(1.0, memory_bytes=2.0)}, {}, memory_bytes={"k80": 1.0}
    )
    state = cluster(v100=2, k80=2)
    queue(state, 100.0, 100.0, 100.0, 400.0)  # 350 s of work on each V100
    outcome, _ = follow(state, PlainRule(pack=False, critical_ratio=1.0), table=too_large)
    assert outcome.end_s == 400.0
    outcome, _ = follow(state, PlainRule(pack=False, critical_ratio=1.5), table=too_large)
    assert outcome.end_s == 500.0


def test_a_critical_job_goes_first_beside_others_too() -> None:
    state = cluster(v100=1)
    queue(state, 100.0, 150.0, 600.0)
    _, started = follow(state, PlainRule(pack=True))
    assert set(started) == {0, 1}
    _, started = follow(state, PlainRule(pack=True, critical_ratio=0.5))
    assert set(started) == {2, 0}


def test_work_under_way_counts_against_the_critical_ratio() -> None:
    state = cluster(v100=2)
    queue(state, 1000.0, 100.0, 400.0)
    running = Allocation(state.waiting[0], (0,))
    # 750 s of work on each GPU, most of it under way.
    assert set(follow(state, PlainRule(False, 0.5), running)[1]) == {2}
    assert set(follow(state, PlainRule(False, 0.6), running)[1]) == {1}


def test_a_patient_job_waits_for_a_faster_type() -> None:
    state = cluster(v100=1, k80=1)
    queue(state, 100.0, 1000.0)
    hasty, started = follow(state, PlainRule(pack=False))
    assert started == {0: (0,), 1: (1,)}
    assert hasty.end_s == 4000.0
    patient, started = follow(state, PlainRule(pack=False, patient=True))
    assert started == {0: (0,)}
    assert patient.end_s == 1100.0


def test_a_patient_job_takes_the_slower_type_if_it_ends_earlier_there() -> None:
    state = cluster(v100=1, k80=1)
    queue(state, 100.0, 101.0)
    assert follow(state, PlainRule(pack=False, patient=True))[1] == {0: (0,)}  # 201 s, 404 on the K80
    state = cluster(v100=1, k80=1)
    queue(state, 10.0, 3000.0)
    busy = Allocation(state.waiting[1], (0,))
    assert follow(state, PlainRule(pack=False, patient=True), busy)[1] == {0: (1,)}  # 40 s


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("pack", [False, True])
def test_every_job_ends_under_every_rule(seed: int, pack: bool) -> None:
    trace, belief = jobs(seed), SetCache(table(seed))
    state = waiting(trace)
    projection = Projection(state, belief, Steps(state, belief, 1e9), 30.0)
    for ratio in (np.inf, 1.0, 0.3):
        schedule, _ = projection.schedule([], PlainRule(pack, ratio, patient=True))
        schedule.run()
        assert len(schedule.ended) == len(trace)
        assert schedule.queue == []
