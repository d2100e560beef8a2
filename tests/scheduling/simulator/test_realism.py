from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from profiling.errors import InfeasibleError, InputError, UnknownNameError
from profiling.workload import Workload
from scheduling.beliefs.table import Solo, TablePredictor
from scheduling.core.job import Allocation, JobState, TraceJob
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import SetTruth
from scheduling.policies import POLICIES, get_policy
from scheduling.ring.scatter import RingScatter
from scheduling.simulator.engine import SimulationConfig, simulate
from scheduling.simulator.jobs_table import jobs_table
from scheduling.simulator.realism import PARTS, NodeOutages, Realism
from scheduling.simulator.result import SimulationResult
from scheduling.simulator.scenario import Scenario
from tests.scheduling.tables import JOBS, table

TABLE = table(3)
CLUSTER = ClusterSnapshot.from_mapping(
    {
        "nodes": [
            {"name": "fast", "count": 2, "gpus": [{"device": "v100", "count": 4}]},
            {"name": "slow", "gpus": [{"device": "k80", "count": 4}]},
        ]
    }
)
OFTEN = Realism(
    length_sigma=0.5, early_ratio=0.3, node_mtbf_s=1500.0, repair_s=400.0, checkpoint_s=120.0, scaling=0.8
)
SIZES = (1, 1, 1, 2, 4)
ZOO = (Workload("resnet18-cifar", batch_size=64), Workload("lstm-wikitext2", batch_size=20))


def run(realism: Realism | None, policy: str = "srtf", jobs: int = 24, seed: int = 1) -> SimulationResult:
    rng = np.random.default_rng(7)
    trace = [
        TraceJob(
            f"j{k}",
            JOBS[k % 5],
            float(rng.uniform(500, 3000)),
            float(rng.uniform(0, 1500)),
            gpus=SIZES[k % 5],
        )
        for k in range(jobs)
    ]
    config = SimulationConfig(realism=realism, seed=seed, record=True)
    return simulate(trace, CLUSTER, get_policy(policy), SetTruth(TABLE), TABLE, config)


@pytest.mark.parametrize("policy", [p for p in POLICIES if not get_policy(p).freezes])
def test_every_job_ends_under_every_policy(policy: str) -> None:
    result = run(OFTEN, policy)
    assert all(job.finished_s is not None and job.left == 0.0 for job in result.jobs)
    assert result.node_failures > 0
    assert result.to_json()["ended_early"] > 0


@pytest.mark.parametrize("realism", [None, OFTEN], ids=["ideal", "often"])
@pytest.mark.parametrize("policy", [p for p in POLICIES if not get_policy(p).freezes])
def test_times_add_up(policy: str, realism: Realism | None) -> None:
    result = run(realism, policy)
    spans: dict[int, list[tuple[float, float]]] = {}
    for job in result.jobs:
        own = [i for i in result.intervals if i.job == job.number]
        assert job.attained_gpu_s == pytest.approx(sum(i.stop_s - i.start_s for i in own))
        held = {(i.start_s, i.stop_s) for i in own}
        completion_s = (job.finished_s or 0.0) - job.job.submit_s
        assert job.waited_s + sum(b - a for a, b in held) == pytest.approx(completion_s)
        for interval in own:
            spans.setdefault(interval.gpu, []).append((interval.start_s, interval.stop_s))
    busy_s = 0.0
    for of_gpu in spans.values():
        end = 0.0
        for start, stop in sorted(of_gpu):
            busy_s += max(stop - max(start, end), 0.0)
            end = max(end, stop)
    assert result.busy_s == pytest.approx(busy_s)
    assert sum(result.busy_s_on.values()) == pytest.approx(busy_s)
    # The recorded number of GPUs in use holds until the next record.
    steps = zip(result.busy, result.busy[1:], strict=False)
    assert sum(gpus * (after - now) for (now, gpus), (after, _) in steps) == pytest.approx(busy_s)


def test_no_job_runs_on_a_failed_node() -> None:
    result = run(Realism(node_mtbf_s=1500.0, repair_s=400.0, checkpoint_s=60.0))
    ends = {interval.stop_s for interval in result.intervals}
    finished = {job.finished_s for job in result.jobs}
    assert ends - finished, "no job was interrupted"
    assert result.lost_gpu_s > 0


def test_no_disturbance_equals_an_ideal_cluster() -> None:
    plain, ideal = run(None, "isacpp"), run(Realism(), "isacpp")
    np.testing.assert_array_equal(plain.completion_s, ideal.completion_s)
    assert ideal.node_failures == 0
    assert ideal.lost_gpu_s == 0.0


def test_draws_are_deterministic() -> None:
    np.testing.assert_array_equal(run(OFTEN).completion_s, run(OFTEN).completion_s)
    assert not np.array_equal(run(OFTEN).completion_s, run(OFTEN, seed=2).completion_s)


def test_expected_lengths_are_log_normal_and_early_ends_uniform() -> None:
    jobs = [JobState(TraceJob(str(k), JOBS[0], 100.0), k, 100.0) for k in range(4000)]
    Realism(length_sigma=0.5, early_ratio=0.25).draw_lengths(jobs, np.random.default_rng(0))
    log_factor = np.log([job.expected_iterations / 100.0 for job in jobs])
    assert (log_factor.mean(), log_factor.std()) == pytest.approx((0.0, 0.5), abs=0.03)
    early = np.array([job.real_iterations / 100.0 for job in jobs if job.ends_early])
    assert len(early) / len(jobs) == pytest.approx(0.25, abs=0.03)
    assert (early.mean(), early.std()) == pytest.approx((0.5, 12**-0.5), abs=0.03)
    assert {job.real_iterations for job in jobs if not job.ends_early} == {100.0}


def test_policies_see_the_estimate_and_not_the_length() -> None:
    job = JobState(
        TraceJob("j", JOBS[0], 1000.0), 0, 800.0, real_iterations=800.0, expected_iterations=1200.0
    )
    assert job.believed(800.0) == 1200.0
    assert job.believed(300.0) == 700.0
    overdue = JobState(
        TraceJob("j", JOBS[0], 900.0), 0, 900.0, real_iterations=900.0, expected_iterations=400.0
    )
    assert overdue.believed(100.0) == pytest.approx(40.0)


def test_lost_progress_costs_at_most_one_checkpoint_interval_a_restart() -> None:
    result = run(Realism(node_mtbf_s=1500.0, repair_s=400.0, checkpoint_s=60.0))
    stops = [i for i in result.intervals if i.stop_s not in {j.finished_s for j in result.jobs}]
    assert result.lost_gpu_s <= 60.0 * len(stops) + 1e-6


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_restart_loads_the_memory_on_the_gpu_where_it_happens(order: tuple[int, ...]) -> None:
    solo = {("v100", JOBS[0]): Solo(0.1, 4e9), ("k80", JOBS[0]): Solo(0.1, 2e9)}
    nodes = [{"name": d, "gpus": [{"device": d}]} for d in ("v100", "k80")]
    snapshot = SchedulingSnapshot(ClusterSnapshot.from_mapping({"nodes": [nodes[k] for k in order]}))
    truth = SetTruth(TablePredictor(solo, {}), restart_s=30.0, restart_bytes_per_s=1e8)
    for gpu, device in enumerate(snapshot.devices):
        job = JobState(TraceJob("j", JOBS[0], 10.0), 0, 10.0, gpus=(gpu,))
        assert truth.restart_s(job, True, snapshot) == 0.0
        assert truth.restart_s(job, False, snapshot) == (70.0 if device == "v100" else 50.0)


def test_a_policy_that_always_stops_a_job_before_its_checkpoint_is_an_error() -> None:
    def turns(snapshot, belief):  # type: ignore[no-untyped-def]
        assert snapshot.now_s < 1e6, "never stopped"
        return [
            *(Allocation(job) for job in snapshot.running.values()),
            *(Allocation(job, (0,)) for job in list(snapshot.waiting.values())[:1]),
        ]

    jobs = [TraceJob(name, JOBS[0], 5000.0) for name in "ab"]
    config = SimulationConfig(realism=Realism(checkpoint_s=120.0))
    policy = Policy("turns", turns, round_s=60.0)
    with pytest.raises(InfeasibleError, match="checkpoint"):
        simulate(jobs, CLUSTER, policy, SetTruth(TABLE), TABLE, config)
    config = SimulationConfig(realism=Realism(checkpoint_s=120.0, saved_stops=True))
    assert simulate(jobs, CLUSTER, policy, SetTruth(TABLE), TABLE, config).lost_gpu_s == 0.0


def test_a_saved_stop_loses_nothing() -> None:
    lossy, saved = (
        run(Realism(checkpoint_s=1800.0, saved_stops=saves), "tiresias") for saves in (False, True)
    )
    assert lossy.lost_gpu_s > 0
    assert saved.lost_gpu_s == 0.0
    assert sum(job.restarts for job in saved.jobs) > 0
    assert run(replace(OFTEN, saved_stops=True)).lost_gpu_s > 0  # nodes fail without asking


def test_gavel_saves_at_the_end_of_a_round() -> None:
    result = run(Realism(checkpoint_s=1800.0), "gavel")
    assert sum(job.restarts for job in result.jobs) > 0
    assert result.lost_gpu_s == 0.0


def test_the_table_of_jobs_marks_early_ends() -> None:
    frame = jobs_table([("srtf", 1, None, run(Realism(early_ratio=0.5)))])
    early = frame[frame.ended_early]
    assert 0 < len(early) < len(frame)
    assert (early.iterations_done < early.iterations).all()
    assert (early.iterations_done > 0).all()
    rest = frame[~frame.ended_early]
    np.testing.assert_array_equal(rest.iterations_done, rest.iterations)
    plain = jobs_table([("srtf", 1, None, run(None))])
    assert not plain.ended_early.any()
    np.testing.assert_array_equal(plain.iterations_done, plain.iterations)


def test_parts_are_combined_and_checked() -> None:
    whole = Realism.of(["all"])
    assert (whole.length_sigma, whole.scaling) == (0.5, 0.8)
    assert Realism.of(["scatter"]) == PARTS["scatter"]
    assert Realism.of(["all", "saved-stops"]) == replace(whole, saved_stops=True)
    assert Realism.of(["early-ends-helios", "all"]) == replace(whole, early_ratio=0.376)
    with pytest.raises(UnknownNameError, match="scatter"):
        Realism.of(["weather"])
    with pytest.raises(InputError, match="early_ratio"):
        Realism(early_ratio=2.0)


def test_a_node_with_two_types_fails_as_a_whole() -> None:
    gpus = [{"device": d, "count": 2} for d in ("v100", "k80")]
    cluster = ClusterSnapshot.from_mapping({"nodes": [{"name": "mixed", "gpus": gpus}]})
    snapshot = SchedulingSnapshot(cluster)
    outages = NodeOutages(Realism(node_mtbf_s=100.0), snapshot, np.random.default_rng(0))
    snapshot.now_s = outages.next_s
    assert outages.due() == [0, 1, 2, 3]


def test_themis_knows_no_more_of_a_length_than_others() -> None:
    # Both have waited equally long, which is a smaller part of the second's time, expected to be ten times as long.
    snapshot = SchedulingSnapshot(CLUSTER)
    snapshot.now_s = 1000.0
    for number in range(2):
        job = TraceJob(f"j{number}", JOBS[0], 1000.0, gpus=4)
        factor = (1.0, 10.0)[number]
        snapshot.waiting[number] = JobState(
            job, number, 1000.0, real_iterations=1000.0, expected_iterations=1000.0 * factor
        )
    started = [a.job.number for a in get_policy("themis").decide(snapshot, SetCache(TABLE))]
    assert started[0] == 0


@pytest.mark.parametrize("policy", ["icefrog", "icefrog-unfrozen", "pollux-freezing"])
def test_policies_that_freeze_run_with_realism(policy: str) -> None:
    belief = TablePredictor({(d, w): Solo(0.2) for d in ("v100", "k80") for w in ZOO}, {})
    truth = SetTruth(
        belief, scatter=RingScatter(1.25).slowdown, scaling=OFTEN.scaling or 1.0, restart_bytes_per_s=2e8
    )
    jobs = [TraceJob(f"j{k}", ZOO[k % 2], 3000.0, 100.0 * k, gpus=(1, 2, 4)[k % 3]) for k in range(9)]
    config = SimulationConfig(realism=OFTEN, seed=1)
    scenario = Scenario(jobs, CLUSTER, truth, belief, config)
    result = scenario.run(policy)
    assert all(job.finished_s is not None and job.left == 0.0 for job in result.jobs)
    assert result.node_failures > 0
    assert result.lost_gpu_s > 0
    assert all(0.0 <= job.agent.progress <= 1.0 for job in result.jobs if job.agent is not None)
