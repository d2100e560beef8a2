from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest

from profiling.workload import Workload
from scheduling.beliefs.table import Solo, TablePredictor
from scheduling.core.job import Allocation, JobState, TraceJob
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import SetTruth
from scheduling.placement.gangs import remaining_s
from scheduling.placement.guard import _Reference, guarded
from scheduling.placement.plain_schedule import Outcome
from scheduling.policies import get_policy
from scheduling.simulator.engine import simulate
from tests.scheduling.placement.waiting import CLUSTER, jobs, waiting
from tests.scheduling.tables import table


def decide(state: SchedulingSnapshot, belief: SetCache, *proposals: list[Allocation]) -> list[Allocation]:
    return guarded(state, belief, [partial(list, p) for p in proposals], 0.01, 1e9, 30.0)


def test_a_decision_with_a_later_end_is_not_taken() -> None:
    a = Workload("a")
    belief = SetCache(TablePredictor({("v100", a): Solo(1.0)}, {("v100", (a, a)): (0.3, 0.3)}))
    state = SchedulingSnapshot(
        ClusterSnapshot.from_mapping({"nodes": [{"name": "n", "gpus": [{"device": "v100", "count": 2}]}]})
    )
    for number in range(2):
        state.waiting[number] = JobState(TraceJob(f"j{number}", a, 100.0), number, 100.0)
    together = [Allocation(job, (0,)) for job in state.waiting.values()]  # 333 s instead of 100
    assert sorted(d.gpus for d in decide(state, belief, together)) == [(0,), (1,)]


def test_a_long_job_may_wait_for_a_fast_gpu() -> None:
    """By the plain rule it would start on a slow one at once."""
    belief, state = SetCache(table(2)), waiting(jobs(2))
    first, second, *_ = sorted(state.waiting.values(), key=lambda j: remaining_s(state, belief, j))
    fast = [Allocation(first, (0,)), Allocation(second, (1,))]
    assert decide(state, belief, fast) == fast


def never() -> list[Allocation]:
    raise AssertionError


def test_a_safe_decision_is_taken_without_computing_the_others() -> None:
    belief, state = SetCache(table(2)), waiting(jobs(2))
    plain = [Allocation(max(state.waiting.values(), key=lambda j: j.left), (0,))]
    assert guarded(state, belief, [lambda: plain, never], 1e9, 1e9, 30.0) == plain


def test_a_decision_like_the_plain_rules_is_safe_without_any_tolerance() -> None:
    belief, state = SetCache(table(2)), waiting(jobs(2, count=1))
    plain = [Allocation(state.waiting[0], (0,))]
    assert guarded(state, belief, [lambda: plain, never], 0.0, 1e9, 30.0) == plain


@pytest.mark.parametrize("gpus", [(0, 1), (1, 0)])
def test_of_equally_good_decisions_the_preferred_one_is_taken(gpus: tuple[int, int]) -> None:
    """Both GPUs are of one type; the plain rule, as good again, takes the first."""
    belief, state = SetCache(table(2)), waiting(jobs(2, count=1))
    proposals = [partial(list, [Allocation(state.waiting[0], (gpu,))]) for gpu in gpus]
    assert guarded(state, belief, proposals, -1e9, 1e9, 30.0) == proposals[0]()


@pytest.mark.parametrize(
    ("worse", "mean", "worst"),
    [({}, 0.0, 0.0), ({"end_s": 120.0, "mean_s": 10.0}, -0.5, 0.1), ({"tail_s": 60.0}, 0.0, 0.2), ({"mean_s": 26.0}, 0.3, 0.3), ({"p99_s": 56.0}, 0.0, 0.4)],
)  # fmt: skip
def test_a_schedule_loses_in_the_mean_and_by_its_worst_figure(
    worse: dict[str, float], mean: float, worst: float
) -> None:
    """The end counts from the first submission, at 10 s."""
    best = Outcome(end_s=110.0, tail_s=50.0, mean_s=20.0, p99_s=40.0)
    schedule = SimpleNamespace(outcome=lambda _: best._replace(**worse))
    losses = _Reference(best, 10.0, []).losses(schedule)  # type: ignore[arg-type]
    assert losses == pytest.approx((mean, worst))


def test_waiting_is_not_judged_as_a_start() -> None:
    """One GPU with a long job; beside it, the short job that waits would be done long before."""
    long, short = Workload("long"), Workload("short")
    ratios = {("v100", (long, short)): (0.9, 0.9)}
    belief = SetCache(TablePredictor({("v100", w): Solo(1.0) for w in (long, short)}, ratios))
    state = SchedulingSnapshot(
        ClusterSnapshot.from_mapping({"nodes": [{"name": "n", "gpus": [{"device": "v100"}]}]})
    )
    running = JobState(TraceJob("long", long, 1000.0), 0, 1000.0)
    running.gpus, running.started_s = (0,), 0.0
    state.running[0] = running
    state.occupy(running)
    state.waiting[1] = JobState(TraceJob("short", short, 100.0), 1, 100.0)
    start = [Allocation(state.waiting[1], (0,))]
    assert decide(state, belief, [], start) == start


@pytest.mark.parametrize("seed", range(6))
def test_isacpps_makespan_is_no_longer_than_that_of_sjf(seed: int) -> None:
    """All jobs are there from the start, with known lengths and pairs, so the guard is sound."""
    trace, belief = jobs(seed, 24), SetCache(table(seed))
    ends = {
        name: simulate(trace, CLUSTER, get_policy(name), SetTruth(belief), belief).makespan_s
        for name in ("sjf", "isacpp")
    }
    assert ends["isacpp"] <= 1.02 * ends["sjf"]


@pytest.mark.parametrize(
    ("devices", "seed"),
    [("v100", 13), ("v100", 58), ("v100 v100", 13), ("v100 k80", 3), ("v100 k80", 34), ("v100 k80", 44), ("v100 k80", 59)],
)  # fmt: skip
def test_isacpps_mean_is_as_good_as_those_of_the_plain_rules(devices: str, seed: int) -> None:
    """With all jobs there from the start; on these small traces the plain rules are hard to beat."""
    nodes = [{"name": f"n{k}", "gpus": [{"device": device}]} for k, device in enumerate(devices.split())]
    cluster = ClusterSnapshot.from_mapping({"nodes": nodes})
    trace, belief = jobs(seed, 3 + seed % 10), SetCache(table(2, seed))
    means = {
        name: simulate(trace, cluster, get_policy(name), SetTruth(belief), belief).to_json()["mean_jct_s"]
        for name in ("sjf", "blind-sjf", "isacpp")
    }
    assert means["isacpp"] <= 1.01 * min(means["sjf"], means["blind-sjf"])
