"""Gavel in the simulator: recorded completions, and each policy's decisions for a few jobs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from profiling.errors import InputError
from profiling.workload import Workload
from scheduling.beliefs.table import Solo, TablePredictor
from scheduling.core.job import JobState, TraceJob
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import SetTruth
from scheduling.gavel.config import GavelConfig
from scheduling.gavel.problem import AllocationProblem
from scheduling.gavel.programs import max_sum
from scheduling.gavel.scheduler import GavelScheduler
from scheduling.gavel.speeds import pair_speeds, solo_speeds
from scheduling.policies import get_policy
from scheduling.simulator.assembly import build_scenario
from scheduling.simulator.engine import SimulationConfig, simulate
from scheduling.simulator.result import SimulationResult
from scheduling.simulator.scenario_spec import ScenarioSpec
from tests.shared import shared_data

A, B = Workload("a"), Workload("b")
TABLE = TablePredictor(
    {("v100", A): Solo(0.1), ("k80", A): Solo(1.0), ("v100", B): Solo(0.25), ("k80", B): Solo(0.5)},
    {("v100", (A, B)): (0.8, 0.7), ("k80", (A, B)): (0.4, 0.5)},
)


def cluster(**counts: int) -> ClusterSnapshot:
    nodes = [
        {"name": f"{device}-{k}", "gpus": [{"device": device}]}
        for device, count in counts.items()
        for k in range(count)
    ]
    return ClusterSnapshot.from_mapping({"nodes": nodes})


def run(
    jobs: list[TraceJob],
    where: ClusterSnapshot,
    policy: str,
    as_published: bool = False,
    restart_s: float = 0.0,
    table: TablePredictor = TABLE,
) -> SimulationResult:
    chosen = get_policy(policy, as_published)
    return simulate(jobs, where, chosen, SetTruth(table, restart_s), table, SimulationConfig(record=True))


def recorded(
    trace_id: str, policy: str
) -> tuple[list[TraceJob], TablePredictor, dict[str, int], dict[int, float]]:
    """A public trace as jobs of the simulator, with its completion times."""
    body: dict[str, Any] = json.loads(shared_data("gavel", "round_cases.json").read_text())
    trace = next(t for t in body["traces"] if t["id"] == trace_id)
    solo: dict[tuple[str, Workload], Solo] = {}
    jobs = []
    for k, job in enumerate(trace["jobs"]):
        workload = Workload(job["type"], batch_size=job["scale"])
        for device, speed in body[f"throughputs_scale{job['scale']}"][job["type"]].items():
            solo[device, workload] = Solo(1.0 / speed)
        jobs.append(
            TraceJob(
                str(k),
                workload,
                job["steps"],
                job["arrival_s"],
                job["scale"],
                priority=job.get("priority", 1),
            )
        )
    completion = next(r["completion_s"] for r in trace["runs"] if r["policy"] == policy)
    return jobs, TablePredictor(solo, {}), trace["worker_counts"], {int(k): s for k, s in completion.items()}


# FIFO has no program and so no choice of optima; the others' completions depend on which one the solver took.
@pytest.mark.parametrize("trace", ["one-gpu", "mixed-scale"])
def test_completions_equal_those_of_the_public_simulator(trace: str) -> None:
    jobs, table, counts, expected = recorded(trace, "fifo_perf")
    result = run(jobs, cluster(**counts), "gavel-fifo", True, table=table)
    # Upstream runs whole steps in a round; the slowest job here takes a second for one.
    assert dict(enumerate(result.completion_s)) == pytest.approx(expected, abs=5.0)


def test_later_arrivals_run_except_with_upstream_rounds() -> None:
    jobs = [TraceJob(str(k), A, 1000.0, submit_s) for k, submit_s in enumerate((10.0, 500.0, 9000.0))]
    ours, upstream = (run(jobs, cluster(v100=1), "gavel", artefact) for artefact in (False, True))
    assert ours.completion_s == pytest.approx([100.0, 100.0, 100.0])
    # Solved at 10 s and, as job 1 comes, not before 1,920 s have passed: it waits for job 2 to come.
    assert upstream.completion_s[1] > 100.0


def test_each_job_gets_the_best_type_for_all() -> None:
    jobs = [TraceJob("0", A, 5000.0), TraceJob("1", B, 2000.0)]  # A is ten times as fast on the V100, B twice
    result = run(jobs, cluster(v100=1, k80=1), "gavel-max-sum")
    held = {(i.job, i.gpu) for i in result.intervals if i.start_s < 360}
    assert held == {(0, 0), (1, 1)}


def test_weights_and_deadlines_change_who_runs() -> None:
    heavy = [TraceJob("0", A, 20000.0), TraceJob("1", A, 20000.0, priority=3.0)]
    first, second = run(heavy, cluster(v100=1), "gavel").completion_s
    assert second < first
    # B's steps are fewer a second, so that max-sum lets it wait; its deadline does not.
    jobs = [TraceJob("0", A, 40000.0), TraceJob("1", B, 4000.0)]
    late = run(jobs, cluster(v100=1), "gavel-max-sum").completion_s[1]
    hurried = [jobs[0], replace(jobs[1], deadline_s=2200.0)]
    in_time = run(hurried, cluster(v100=1), "gavel-max-sum").completion_s[1]
    assert in_time < 2200.0 + 360.0 < late


def test_only_pairs_that_beat_taking_turns_are_formed() -> None:
    snapshot = SchedulingSnapshot(cluster(v100=1, k80=1))
    belief = SetCache(TABLE)
    result = run([TraceJob("0", A, 1.0), TraceJob("1", B, 1.0)], cluster(v100=1, k80=1), "fifo")
    jobs = result.jobs
    kinds = [0, 1]
    alone = np.stack([solo_speeds(snapshot, belief, j, kinds) for j in jobs])
    assert alone.tolist() == [[10.0, 1.0], [4.0, 2.0]]
    pairs = pair_speeds(snapshot, belief, jobs, alone, [(0, 1), (1, 0)], kinds)
    assert pairs[0, 1] == pytest.approx(np.array([[8.0, 2.8], [0.0, 0.0]]))
    assert pairs[1, 0] == pytest.approx(pairs[0, 1][:, ::-1])


def test_packing_shares_a_gpu() -> None:
    jobs = [TraceJob("0", A, 10000.0), TraceJob("1", B, 4000.0)]
    alone = run(jobs, cluster(v100=1), "gavel").makespan_s
    together = run(jobs, cluster(v100=1), "gavel-packed")
    assert together.makespan_s < 0.8 * alone
    assert together.busy_s == pytest.approx(together.makespan_s)


def test_a_non_preemptible_job_keeps_its_gpu() -> None:
    jobs = [TraceJob("0", A, 20000.0, preemptible=False), TraceJob("1", A, 100.0, 10.0)]
    result = run(jobs, cluster(v100=1), "gavel", restart_s=30.0)
    assert result.jobs[0].restarts == 0
    assert result.completion_s[0] == pytest.approx(2000.0)


def test_gavel_sia_keeps_running_jobs_in_place_and_takes_the_first_free_gpus() -> None:
    config = GavelConfig("max-sum", first_free=True)
    where = ClusterSnapshot.from_mapping(
        {"nodes": [{"name": "n", "count": 3, "gpus": [{"device": "v100", "count": 2}]}]}
    )
    snapshot = SchedulingSnapshot(where)
    jobs = [JobState(TraceJob(str(n), A, 100, gpus=g), n, 100) for n, g in enumerate((1, 1, 2, 2))]
    scheduler = GavelScheduler(snapshot, config)
    scheduler.jobs = {job.number: job for job in jobs}
    jobs[1].gpus = (1,)
    snapshot.occupy(jobs[1])
    snapshot.running[1] = jobs[1]
    # The first of two GPUs takes GPUs 0 and 1, whatever the smaller job holds; the next two follow; then the small ones.
    assert scheduler._first_free(snapshot, [((n,), 0) for n in range(4)]) == {
        (2,): (0, 1), (3,): (2, 3), (0,): (4,), (1,): (5,),
    }  # fmt: skip
    bound = JobState(TraceJob("1", A, 100, preemptible=False), 1, 100, gpus=(1,))
    scheduler.jobs[1] = bound
    placed = scheduler._first_free(snapshot, [((n,), 0) for n in range(4)])
    assert placed == {(1,): (1,), (2,): (0, 2), (3,): (3, 4), (0,): (5,)}


def test_equal_jobs_get_equal_shares() -> None:
    speed = np.array([[2.0, 1.0], [2.0, 1.0], [9.0, 1.0]])
    problem = AllocationProblem.of(speed, [1, 1, 1], [2.0, 1.0])
    even = problem.even(max_sum(problem))
    assert even[0].tolist() == even[1].tolist()
    assert even.sum(axis=0).tolist() == [2.0, 1.0]
    assert even[2].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("workload", "published"),
    [("philly", (6016.5, 97579.0, 126143.0)), ("saturn", (6474.2, 78344.0, 80072.0))],
)
def test_sias_own_comparison(workload: str, published: tuple[float, ...]) -> None:
    path = shared_data("sia", "workloads", workload, "workload-1.csv")
    result = build_scenario(ScenarioSpec(f"sia:{path}", "sia-64", kind="rigid")).run("gavel-sia").to_json()
    for name, expected, within in zip(
        ("mean_jct_s", "p99_jct_s", "max_jct_s"), published, (0.03, 0.08, 0.05), strict=True
    ):
        assert result[name] == pytest.approx(expected, rel=within)


def test_a_gang_on_scattered_gpus_runs() -> None:
    jobs = [TraceJob("0", A, 1000.0, gpus=3)]
    assert run(jobs, cluster(v100=3), "gavel").completion_s[0] == pytest.approx(100.0)


@pytest.mark.parametrize(
    "settings",
    [{"objective": "best"}, {"objective": "allox", "packed": True}, {"objective": "max-sum", "blind": True}],
)
def test_invalid_settings_are_rejected(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="objective"):
        GavelConfig(**settings)


def test_finish_time_fairness_goes_on_after_an_outage_of_a_jobs_only_type() -> None:
    snapshot = SchedulingSnapshot(cluster(v100=1, k80=1))
    only_v100 = Workload("c")
    table = TablePredictor(
        TABLE.solo | {("v100", only_v100): Solo(0.1, 10.0), ("k80", only_v100): Solo(1.0, 10.0)},
        {}, {"v100": 10.0, "k80": 5.0},
    )  # fmt: skip
    for number, workload in enumerate((only_v100, A)):
        job = TraceJob(f"j{number}", workload, 1e5)
        snapshot.waiting[number] = JobState(job, number, job.iterations)
    scheduler = GavelScheduler(snapshot, GavelConfig("finish-time"))
    outage = JobState(TraceJob("outage", A, 1.0), -9, 1.0, gpus=(0,))
    snapshot.fail([outage])
    scheduler.decide(snapshot, SetCache(table))
    snapshot.repair([0])
    snapshot.now_s = 2000.0
    scheduler.decide(snapshot, SetCache(table))
    assert all(np.isfinite(values).all() for values in scheduler.isolated.values())
