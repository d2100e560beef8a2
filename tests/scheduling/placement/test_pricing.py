"""Sharing, waiting, moving and preempting happen exactly where they pay."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from profiling.workload import Workload
from scheduling.beliefs.table import Solo, TablePredictor
from scheduling.core.job import JobState, TraceJob
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot, Gpu, Node, Tenant
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import SetTruth
from scheduling.placement import pricing
from scheduling.placement.gangs import Pool
from scheduling.placement.packing import Tenancy
from scheduling.placement.pairing import Pairs
from scheduling.placement.pricing import _Costs, _Departures, _end_s, _type_values, matched, start_at_price
from scheduling.placement.ranking import PlacementConfig
from scheduling.policies import get_policy
from scheduling.policies.isacpp import isacpp
from scheduling.simulator.engine import simulate
from tests.scheduling.placement.waiting import CLUSTER
from tests.scheduling.tables import JOBS
from tests.scheduling.tables import table as random_table

A = Workload("a")


def table(ratio: float) -> TablePredictor:
    return TablePredictor({("v100", A): Solo(1.0)}, {("v100", (A, A)): (ratio, ratio)})


def cluster(gpus: int) -> ClusterSnapshot:
    return ClusterSnapshot((Node("n", tuple(Gpu(str(k), "v100") for k in range(gpus))),))


def run(ratio: float, jobs: list[tuple[float, float]], gpus: int = 1, name: str = "isacpp") -> list[JobState]:
    """Jobs are (seconds alone, submission time)."""
    trace = [TraceJob(f"j{k}", A, length, at) for k, (length, at) in enumerate(jobs)]
    return simulate(trace, cluster(gpus), get_policy(name), SetTruth(table(ratio)), table(ratio)).jobs


def ends(states: list[JobState]) -> list[float]:
    return [round(float(s.finished_s or 0.0), 3) for s in states]


def test_two_equal_jobs_share_at_two_thirds_of_their_speed_or_more() -> None:
    """Both end after 1 / r, or one after 1 and the other after 2: the sums are equal at r = 2 / 3."""
    jobs = [(1000.0, 0.0), (1000.0, 0.0)]
    assert ends(run(0.65, jobs)) == [1000.0, 2000.0]
    assert ends(run(0.7, jobs)) == pytest.approx([1000 / 0.7] * 2, abs=1e-3)


def test_with_a_long_queue_sharing_only_has_to_beat_taking_turns() -> None:
    """n jobs in pairs take (n + 2) / (2 r (n + 1)) of their time one by one: r = .54 pays from n = 12 on."""
    jobs = [(1000.0, 0.0)] * 12
    assert sum(ends(run(0.56, jobs))) < sum(ends(run(0.56, jobs, name="sjf")))
    assert sum(ends(run(0.45, jobs))) == sum(ends(run(0.45, jobs, name="sjf")))


def test_a_job_moves_to_an_emptied_gpu_if_that_pays_for_the_restart() -> None:
    jobs = [(3000.0, 0.0), (3000.0, 0.0), (3000.0, 1.0)]
    moved = run(0.8, jobs, gpus=2)  # the last shares a GPU until the other becomes empty
    assert sum(s.restarts for s in moved) == 1
    assert max(ends(moved)) < 3650.0
    stayed = run(0.99, jobs, gpus=2)
    assert sum(s.restarts for s in stayed) == 0


def test_a_long_job_makes_room_for_a_much_shorter_one() -> None:
    stopped = run(0.5, [(5000.0, 0.0), (600.0, 10.0)])
    assert ends(stopped) == [5000.0 + 600.0 + 30.0, 610.0]
    kept = run(0.5, [(1200.0, 0.0), (600.0, 10.0)])
    assert [s.restarts for s in kept] == [0, 0]
    only = TraceJob("fixed", A, 5000.0, preemptible=False)
    trace = [only, TraceJob("short", A, 600.0, 10.0)]
    result = simulate(trace, cluster(1), get_policy("isacpp"), SetTruth(table(0.5)), table(0.5))
    assert [s.restarts for s in result.jobs] == [0, 0]


def test_without_restarts_no_job_is_moved_or_stopped() -> None:
    policy = isacpp(PlacementConfig(max_members=2), restart_s=None)
    jobs = [TraceJob(f"j{k}", JOBS[k % 5], 500.0 * (1 + k % 7), 20.0 * k) for k in range(24)]
    truth = random_table(2)
    result = simulate(jobs, cluster(3), policy, SetTruth(truth), truth)
    assert sum(s.restarts for s in result.jobs) == 0


@pytest.mark.parametrize("seed", range(4))
def test_the_oracle_is_no_worse_than_simple_policies(seed: int) -> None:
    truth = random_table(2, seed=seed)
    jobs = [
        TraceJob(f"j{k}", JOBS[(k * 7 + seed) % 5], 300.0 * (1 + (k * 5) % 11), 15.0 * k) for k in range(40)
    ]
    mean = {
        name: simulate(jobs, cluster(6), get_policy(name), SetTruth(truth), truth).completion_s.mean()
        for name in ("exclusive", "blind", "sjf", "blind-sjf", "srtf", "isacpp")
    }
    ours = mean.pop("isacpp")
    assert ours <= 1.01 * min(mean.values())


def test_the_makespan_is_no_longer_than_that_of_simple_policies() -> None:
    truth = random_table(2)
    jobs = [TraceJob(f"j{k}", JOBS[(k * 7) % 5], 300.0 * (1 + (k * 5) % 11), 15.0 * k) for k in range(40)]
    makespan = {
        name: simulate(jobs, cluster(6), get_policy(name), SetTruth(truth), truth).makespan_s
        for name in ("exclusive", "blind", "sjf", "blind-sjf", "isacpp-makespan")
    }
    assert makespan.pop("isacpp-makespan") <= 1.01 * min(makespan.values())


def test_most_jobs_at_the_least_cost_among_all_assignments() -> None:
    draw = np.random.default_rng(0)
    for trial in range(300):
        cost = draw.uniform(0.0, 100.0, draw.integers(2, 5, 2))
        if trial % 3 == 0:
            cost[:] = 5.0  # no choice saves anything, but a job more may share
        cost[draw.random(cost.shape) < 0.35] = np.inf
        found = matched(cost)
        best = (0, 0.0)
        for columns in product(range(-1, cost.shape[1]), repeat=len(cost)):
            chosen = [(r, c) for r, c in enumerate(columns) if c >= 0]
            total = float(sum(cost[cell] for cell in chosen))
            if len({c for _, c in chosen}) == len(chosen) and np.isfinite(total):
                best = max(best, (len(chosen), -total))
        assert (len(found), -sum(cost[cell] for cell in found)) == pytest.approx(best)


def test_no_job_changes_to_a_gpu_that_is_reserved_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of three jobs waits for GPU 1, which would suit the third best, but would then be busy for longer."""
    never = np.inf
    score = np.array([[110.0, never, never], [never] * 3, [never, 80.0, 120.0]])

    def started(extension_s: float) -> dict[str, tuple[int, ...]]:
        pairs = Pairs(score, score, np.full((3, 3), 5.0), np.zeros((3, 3, 1)), np.zeros((3, 3, 0)))
        pairs.extension_s[:, 1] = extension_s
        monkeypatch.setattr(pricing, "offers", lambda *_: pairs)
        tenants = [(Tenant(A, left),) for left in (1000.0, 50.0, 1000.0)]
        gpus = tuple(Gpu(str(k), "v100", tenants=own) for k, own in enumerate(tenants))
        state = SchedulingSnapshot(ClusterSnapshot((Node("n", gpus),)))
        for number in range(3):
            state.waiting[number] = JobState(TraceJob(f"j{number}", A, 100.0), number, 100.0)
        tenancy, config = Tenancy.of(state, SetCache(table(0.5)), 2), PlacementConfig(max_members=2)
        jobs = list(state.waiting.values())
        decisions, _ = start_at_price(state, tenancy, Pool(state), np.arange(3), jobs, config, [], None)
        return {a.job.id: a.gpus for a in decisions}

    assert started(extension_s=50.0) == {"j0": (0,), "j2": (2,)}
    assert started(extension_s=0.5) == {"j0": (0,), "j2": (1,)}


def test_cost_of_running_alone() -> None:
    """Of completion times, the end counts and the wait of those behind; of the makespan, GPU time and being late."""
    end, alone_s, values = (
        np.array([100.0, 40.0, np.inf]),
        np.array([10.0, 20.0, 1.0]),
        np.array([1.0, 0.5, 2.0]),
    )
    assert _Costs(2.0, values, np.inf).alone(end, alone_s, 3.0).tolist() == [130.0, 70.0, np.inf]
    assert _Costs(2.0, values, 60.0).alone(end, alone_s, 3.0).tolist() == [10.0 + 2.0 * 40.0, 10.0, np.inf]


def test_value_of_a_gpu_of_each_type() -> None:
    """By how fast the jobs run there; the mean over the cluster's four GPUs is 1."""
    state = SchedulingSnapshot(CLUSTER)
    steps = np.array([[1.0, 2.0], [1.0, np.inf]])
    fast, slow = _type_values(state, steps, 4)
    assert (2 * fast + 2 * slow) / 4 == pytest.approx(1.0)
    assert slow / fast == pytest.approx(0.25)


def test_predicted_makespan() -> None:
    """All work over two GPUs, of which the first is busy for another 30 s, but no less than the longest job."""
    state, alone_s = SchedulingSnapshot(cluster(2)), [60.0] * 6
    for number, seconds in enumerate(alone_s):
        state.waiting[number] = JobState(TraceJob(f"j{number}", A, seconds), number, seconds)
    tenancy = Tenancy.of(state, SetCache(table(0.5)), 2)
    departures = _Departures(state, tenancy, [])
    departures.extend(0, 30.0)

    def end_s(pairs: Pairs) -> float:
        return _end_s(state, tenancy, departures, pairs, np.array(alone_s), 2)

    pairs = Pairs.none(6, 1)
    assert end_s(pairs) == (30.0 + 360.0) / 2
    pairs.score[:3], pairs.extension_s[:3] = 1.0, 40.0
    assert end_s(pairs) == pytest.approx((30.0 + 3 * 40.0 + 3 * 60.0) / 2), (
        "three may share, and save 20 s each"
    )
    pairs.score[:], pairs.extension_s[:] = 1.0, 0.0
    assert end_s(pairs) == (30.0 + 360.0 / 2) / 2, "a shared GPU does no more than twice the work"
    state.waiting[6] = JobState(TraceJob("long", A, 500.0), 6, 500.0)
    assert end_s(pairs) == 500.0
