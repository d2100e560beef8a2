from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from profiling.workload import Workload
from scheduling.beliefs.table import Solo, TablePredictor
from scheduling.core.job import Allocation, JobState, TraceJob
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot, Gpu, Node
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import Segment
from scheduling.elastic.agent import ElasticAgent, ElasticTruth, elastic_job, size_index, size_rates
from scheduling.elastic.jobs import SIZES, IceFrogConfig, sizes_of
from scheduling.elastic.policy import (
    NEVER,
    icefrog,
    icefrog_unfrozen,
    optimus,
    optimus_shortest,
    pollux,
    pollux_freezing,
)
from scheduling.simulator.engine import SimulationConfig, simulate
from scheduling.simulator.realism import Realism
from scheduling.simulator.result import SimulationResult
from tests.scheduling.elastic.test_pairs import Additive

CLUSTER = ClusterSnapshot(
    tuple(Node(f"n{n}", tuple(Gpu(str(g), "v100") for g in range(4))) for n in range(3))
)


def agent(job: TraceJob) -> ElasticAgent:
    rate = np.array(SIZES)[:, None] ** 0.8 * np.array([1.0, 1.3, 1.6])[None, :]
    shares = np.broadcast_to(np.array([0.0, 0.2, 0.45]), (5, 3)).copy()
    return ElasticAgent((0, 3, 6), rate, np.linspace(0, 1, 5), shares, 2.0)


def rigid(job: TraceJob) -> ElasticAgent:
    shares = np.zeros((5, 1))
    return ElasticAgent((0,), size_rates(job, 1.0, 0.8)[:, None], np.linspace(0, 1, 5), shares, 2.0)


def run(policy: Policy, count: int = 20, shared: Additive | None = None) -> SimulationResult:
    draw = np.random.default_rng(0)
    jobs = [
        TraceJob(f"j{n}", Workload("x"), float(draw.uniform(200, 8000)), float(draw.uniform(0, 3000)), 1)
        for n in range(count)
    ]
    truth = ElasticTruth(shared=shared)
    config = SimulationConfig(reevaluate_each_round=True, record=True)
    belief = SetCache(shared or Additive(100.0))
    return simulate(jobs, CLUSTER, policy, truth, belief, config, agent=agent)


@pytest.mark.parametrize(
    "make", [icefrog, icefrog_unfrozen, optimus, optimus_shortest, pollux, pollux_freezing]
)
def test_every_job_completes_and_no_gpu_is_allocated_twice(make: type) -> None:
    result = run(make())
    assert all(job.finished_s is not None for job in result.jobs)
    spans: dict[int, list[tuple[float, float]]] = {}
    for interval in result.intervals:
        spans.setdefault(interval.gpu, []).append((interval.start_s, interval.stop_s))
    for held in spans.values():
        held.sort()
        assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(held))


@pytest.mark.parametrize("make", [icefrog, icefrog_unfrozen, pollux, pollux_freezing])
def test_a_job_that_is_larger_than_believed_runs_where_it_fits(make: type) -> None:
    cluster = ClusterSnapshot((Node("a", (Gpu("0", "k80"),)), Node("b", (Gpu("0", "v100"),))))
    job = Workload("x")
    solo = {(device, job): Solo(1.0, 10e9) for device in ("k80", "v100")}
    belief, truth = (TablePredictor(solo, {}, {"k80": k80, "v100": 16e9}) for k80 in (12e9, 8e9))
    elastic = ElasticTruth(alone=SetCache(truth))
    config = SimulationConfig(reevaluate_each_round=True)
    jobs = [TraceJob(f"j{n}", job, 500.0) for n in range(3)]
    result = simulate(jobs, cluster, make(), elastic, SetCache(belief), config, agent=agent)
    assert all(job.finished_s is not None and list(job.served_s) == ["v100"] for job in result.jobs)
    assert result.out_of_memory > 0


@pytest.mark.parametrize(
    "make", [icefrog, icefrog_unfrozen, optimus, optimus_shortest, pollux, pollux_freezing]
)
@pytest.mark.parametrize("share_gpus", [False, True])
def test_a_job_that_may_not_be_stopped_keeps_its_gpus(make: type, share_gpus: bool) -> None:
    kept = {"first", "later"}
    jobs = [
        TraceJob(name, Workload("x"), 3000.0, 100.0 * k, 1, 1, 8, preemptible=name not in kept)
        for k, name in enumerate(["first", "a", "b", "later", "c", "d"])
    ]
    config = SimulationConfig(reevaluate_each_round=True)
    belief = SetCache(Additive(100.0))
    policy = make(IceFrogConfig(share_gpus=share_gpus))
    result = simulate(jobs, CLUSTER, policy, ElasticTruth(), belief, config, agent=agent)
    assert all(job.finished_s is not None for job in result.jobs)
    assert all(job.restarts == 0 for job in result.jobs if job.id in kept)


def test_freezing_pays_and_its_debt_is_capped() -> None:
    frozen, plain = run(icefrog()), run(icefrog_unfrozen())
    assert frozen.completion_s.mean() < plain.completion_s.mean()
    debts = [job.agent.debt for job in frozen.jobs]
    assert 0.0 < max(debts) < 0.2
    assert all(job.agent.debt == 0.0 for job in plain.jobs)


@pytest.mark.parametrize("seed", range(3))
def test_debt_is_measured_against_the_length_that_the_policy_expects(seed: int) -> None:
    policy, ratios = icefrog(), []

    def decide(snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
        for state in snapshot.running.values():
            done = state.job.iterations - state.left
            if 0 < done < 0.9 * state.expected_length:  # not overdue
                seen = elastic_job(state, snapshot, belief)
                ratios.append((seen.debt / seen.progress, state.agent.debt / done * state.job.iterations))
        return policy.decide(snapshot, belief)

    jobs = [TraceJob("j", Workload("x"), 60000.0)]
    config = SimulationConfig(reevaluate_each_round=True, realism=Realism(length_sigma=0.5), seed=seed)
    belief = SetCache(Additive(100.0))
    simulate(jobs, CLUSTER, replace(policy, decide=decide), ElasticTruth(), belief, config, agent=agent)
    seen, real = np.array(ratios).T
    assert real.max() > 0.0
    np.testing.assert_allclose(seen, real)


class Trailed(ElasticTruth):
    """Keeps (progress, penalty from there on) of every job, without what was lost."""

    def __init__(self) -> None:
        super().__init__()
        self.trail: dict[int, list[tuple[float, float]]] = {}

    def segment(self, job: JobState, snapshot: SchedulingSnapshot) -> Segment:
        segment = super().segment(job, snapshot)
        trail = self.trail.setdefault(job.number, [])
        while trail and trail[-1][0] > job.agent.progress:
            trail.pop()
        trail.append((job.agent.progress, job.agent.penalty))
        return segment


def test_lost_work_takes_its_debt_along() -> None:
    jobs = [TraceJob(f"j{k}", Workload("x"), 8000.0, 300.0 * k, 1, 1, 4) for k in range(16)]
    truth, belief = Trailed(), SetCache(Additive(100.0))
    realism = Realism(checkpoint_s=300.0, node_mtbf_s=4000.0, repair_s=600.0)
    config = SimulationConfig(reevaluate_each_round=True, realism=realism, seed=1)
    result = simulate(jobs, CLUSTER, icefrog(), truth, belief, config, agent=agent)
    assert result.lost_gpu_s > 0
    for job in result.jobs:
        steps = itertools.pairwise(truth.trail[job.number])
        debt = sum(penalty * (then - now) for (now, penalty), (then, _) in steps)
        assert job.agent.debt == pytest.approx(debt)


def tenants(result: SimulationResult) -> int:
    """Largest number of jobs on one GPU at once; jobs that share hold only one GPU."""
    most, moments = 0, sorted({interval.start_s for interval in result.intervals})
    for at in moments:
        held = [interval for interval in result.intervals if interval.start_s <= at < interval.stop_s]
        gpus = Counter(interval.gpu for interval in held)
        jobs = Counter(interval.job for interval in held)
        most = max(most, *gpus.values())
        assert all(jobs[interval.job] == 1 for interval in held if gpus[interval.gpu] > 1)
    return most


@pytest.mark.parametrize("frozen", [True, False])
def test_jobs_without_a_gpu_share_one(frozen: bool) -> None:
    config = IceFrogConfig(guards=IceFrogConfig().guards if frozen else NEVER)
    sharing = replace(config, share_gpus=True)
    alone = run(icefrog(config), 24, Additive(100.0, 0.2))
    shared = run(icefrog(sharing), 24, Additive(100.0, 0.2))
    assert (tenants(alone), tenants(shared)) == (1, 2)
    assert all(job.finished_s is not None for job in shared.jobs)
    assert shared.completion_s.mean() < alone.completion_s.mean()
    if frozen:
        assert any(job.agent.prefix_changes for job in shared.jobs)


def test_jobs_that_do_not_fit_together_do_not_share() -> None:
    sharing = icefrog(IceFrogConfig(share_gpus=True))
    assert tenants(run(sharing, 24, Additive(7.0))) == 1  # 20 layers in two jobs, of which 12 can be frozen


def test_decisions_are_deterministic() -> None:
    first, again = run(icefrog(IceFrogConfig(shortness=1.0))), run(icefrog(IceFrogConfig(shortness=1.0)))
    np.testing.assert_array_equal(first.completion_s, again.completion_s)


STARVATION_S = 4 * 3600.0


@pytest.mark.parametrize("make", [icefrog, icefrog_unfrozen, optimus_shortest])
def test_a_long_job_does_not_starve_behind_short_ones(make: type) -> None:
    cluster = ClusterSnapshot((Node("a", (Gpu("0", "v100"),)),))
    short = [TraceJob(f"s{k}", Workload("x"), 1000.0, 900.0 * k) for k in range(80)]
    jobs = [TraceJob("long", Workload("x"), 30_000.0), *short]
    config = SimulationConfig(reevaluate_each_round=True)
    belief = SetCache(Additive(100.0))
    result = simulate(jobs, cluster, make(), ElasticTruth(), belief, config, agent=agent)
    long = next(job for job in result.jobs if job.id == "long")
    assert long.finished_s is not None
    # It runs for four hours after each four that it has waited.
    turns = np.ceil(sum(long.served_s.values()) / STARVATION_S)
    assert long.finished_s < (turns + 1) * 2 * STARVATION_S


def test_jobs_that_would_stay_make_room_for_a_gang_that_has_waited_too_long() -> None:
    cluster = ClusterSnapshot(
        tuple(Node(name, tuple(Gpu(str(g), "v100") for g in range(2))) for name in "ab")
    )
    singles = [TraceJob(f"s{k}", Workload("x"), 25_000.0 + 1_250 * (k == 1)) for k in range(3)]
    gang = TraceJob("gang", Workload("x"), 62_500.0, 0.0, 2)
    policy = icefrog_unfrozen(IceFrogConfig(starvation_s=STARVATION_S / 8))
    config = SimulationConfig(reevaluate_each_round=True)
    belief = SetCache(Additive(100.0))
    result = simulate([*singles, gang], cluster, policy, ElasticTruth(), belief, config, agent=rigid)
    last = result.jobs[-1]
    assert last.started_s is not None
    assert last.started_s <= STARVATION_S / 8 + 120.0
    assert all(job.finished_s is not None for job in result.jobs)


def test_size_index() -> None:
    assert [size_index(n) for n in (0, 1, 4, 5, 8, 16, 20)] == [-1, 0, 3, 3, 4, 6, 6]


def test_a_job_that_none_of_the_sizes_suits_has_its_own_among_them() -> None:
    def sizes(gpus: int, least: int | None = None, most: int | None = None) -> tuple[int, ...]:
        return sizes_of(TraceJob("j", Workload("x"), 1.0, 0.0, gpus, least, most))

    assert sizes(4) == sizes(6, 4, 8) == SIZES
    assert sizes(5) == (1, 2, 3, 4, 5, 12, 16)
    assert sizes(6, 5, 7) == (1, 2, 3, 4, 6, 12, 16)
    assert sizes(32) == (1, 2, 3, 4, 8, 12, 32)
