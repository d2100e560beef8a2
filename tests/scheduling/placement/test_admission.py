"""Admission by priority: gangs are served in their turn, wherever the free GPUs are."""

from __future__ import annotations

import pytest

from scheduling.core.job import TraceJob
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.truth import SetTruth
from scheduling.policies import get_policy
from scheduling.simulator.engine import SimulationConfig, simulate
from scheduling.simulator.realism import Realism
from scheduling.simulator.result import SimulationResult
from tests.scheduling.tables import JOBS, table

TABLE, STEP_S = table(2), 0.1
DEVICES = {"one type": ("v100", "v100"), "two types": ("v100", "k80")}


def run(
    policy: str, jobs: list[TraceJob], devices: tuple[str, str], realism: Realism | None = None, seed: int = 0
) -> SimulationResult:
    nodes = [
        {"name": n, "gpus": [{"device": device, "count": 4}]} for n, device in zip("ab", devices, strict=True)
    ]
    cluster = ClusterSnapshot.from_mapping({"nodes": nodes})
    config = SimulationConfig(realism=realism, seed=seed)
    return simulate(jobs, cluster, get_policy(policy), SetTruth(TABLE), TABLE, config)


def singles(long: set[int]) -> list[TraceJob]:
    """Eight jobs, four on either node; those in `long` take 50,000 s and have late deadlines."""
    return [
        TraceJob(f"s{k}", JOBS[0], 50_000 / STEP_S, float(k), deadline_s=1e6 if k in long else 1e5)
        for k in range(8)
    ]


@pytest.mark.parametrize("devices", DEVICES.values(), ids=DEVICES)
@pytest.mark.parametrize("policy", ["edf", "srtf"])
def test_the_first_gang_runs_although_the_last_jobs_are_on_different_nodes(
    policy: str, devices: tuple[str, str]
) -> None:
    gang = TraceJob("gang", JOBS[0], 3_600 / STEP_S, 100.0, 4, deadline_s=4_000.0)
    result = run(policy, [*singles({2, 3, 6, 7}), gang], devices)
    started = next(j for j in result.jobs if j.id == "gang").started_s
    assert started == pytest.approx(100.0)
    # Four jobs lose their GPUs; others may change places with them once.
    assert sum(j.restarts for j in result.jobs) <= 8


def test_jobs_before_a_gang_keep_their_gpus() -> None:
    early = [TraceJob(f"s{k}", JOBS[0], 5_000 / STEP_S, float(k), deadline_s=1e4) for k in range(8)]
    gang = TraceJob("gang", JOBS[0], 3_600 / STEP_S, 100.0, 4, deadline_s=1e6)
    result = run("edf", [*early, gang], DEVICES["one type"])
    assert all(j.restarts == 0 for j in result.jobs)


def test_themis_serves_a_gang_that_is_worst_off() -> None:
    """A stream of single jobs, for which enough GPUs never become free together by themselves."""
    stream = [
        TraceJob(f"s{k}", JOBS[0], 6_000 / STEP_S, 800.0 * k if k >= 8 else 700.0 * k) for k in range(120)
    ]
    gang = TraceJob("gang", JOBS[0], 3_600 / STEP_S, 100.0, 4)
    (done,) = (j for j in run("themis", [*stream, gang], DEVICES["one type"]).jobs if j.id == "gang")
    assert done.started_s is not None
    assert done.started_s < 30_000.0


@pytest.mark.parametrize("policy", ["pollux", "optimus", "isacpp"])
def test_running_jobs_move_for_a_rigid_gang(policy: str) -> None:
    """Two long jobs on either node leave room for four, but not on one node."""
    jobs = [
        TraceJob(f"s{k}", JOBS[0], (90_000 if k in (0, 1, 4, 5) else 3_000) / STEP_S, float(k))
        for k in range(8)
    ]
    gang = TraceJob("gang", JOBS[0], 600 / STEP_S, 100.0, 4)
    later = [TraceJob(f"q{k}", JOBS[0], 600 / STEP_S, 200.0 + k) for k in range(8)]
    result = run(policy, [*jobs, gang, *later], DEVICES["one type"])
    finished = {j.id: j.finished_s or float("inf") for j in result.jobs}
    assert finished["gang"] < 10_000.0
    assert max(finished[f"q{k}"] for k in range(8)) < 20_000.0


@pytest.mark.parametrize("policy", ["sia", "sia-packed", "gavel-sia", "gavel", "gavel-fifo"])
def test_failed_gpus_are_not_chosen_while_others_are_idle(policy: str) -> None:
    realism = Realism(node_mtbf_s=6_000.0, repair_s=3_600.0)
    jobs = [TraceJob(f"j{k}", JOBS[0], 300 / STEP_S, 700.0 * k) for k in range(40)]
    result = run(policy, jobs, DEVICES["one type"], realism)
    assert result.node_failures > 0
    waits = sorted((j.started_s or float("inf")) - j.job.submit_s for j in result.jobs)
    assert waits[len(waits) // 2] <= 360.0  # a round


def test_preemption_goes_on_while_a_node_is_down() -> None:
    jobs = [TraceJob(f"l{k}", JOBS[0], 20_000 / STEP_S, 0.0) for k in range(8)]
    jobs += [TraceJob(f"s{k}", JOBS[0], 50 / STEP_S, 1_000.0 + 1_000.0 * k) for k in range(15)]
    result = run("srtf", jobs, DEVICES["one type"], Realism(node_mtbf_s=8_000.0, repair_s=3_600.0))
    assert result.node_failures > 0
    assert all((j.started_s or 1e9) - j.job.submit_s < 60.0 for j in result.jobs if j.id.startswith("s"))


@pytest.mark.parametrize("policy", ["edf", "srtf", "tiresias"])
def test_a_gang_without_a_node_leaves_idle_gpus_to_later_jobs(policy: str) -> None:
    """Two jobs on either node go before the gang, so that four GPUs are idle and no node has room for it."""
    jobs = [
        TraceJob(f"s{k}", JOBS[0], (3_000 if k in (0, 1, 4, 5) else 600) / STEP_S, float(k), deadline_s=1e4)
        for k in range(8)
    ]
    jobs.append(TraceJob("gang", JOBS[0], 3_400 / STEP_S, 100.0, 4, deadline_s=2e4))
    jobs += [TraceJob(f"q{k}", JOBS[0], 7_000 / STEP_S, 200.0 + k, deadline_s=1e6) for k in range(4)]
    done = {j.id: j for j in run(policy, jobs, DEVICES["one type"]).jobs}
    assert all((done[f"q{k}"].started_s or 1e9) < 800.0 for k in range(4))
    # They give way as soon as a node can be emptied.
    assert done["gang"].started_s == pytest.approx(
        max(done[f"s{k}"].finished_s or 0 for k in (0, 1)), abs=61.0
    )


@pytest.mark.parametrize("policy", ["edf", "srtf", "tiresias", "themis"])
def test_a_gang_that_finds_room_runs_before_one_that_finds_none(policy: str) -> None:
    """One node has room for one of two equal gangs; the GPUs of the others are for single jobs."""
    nodes = [
        {"name": f"n{k}", "gpus": [{"device": "v100", "count": count}]}
        for k, count in enumerate((4, 1, 1, 1, 1))
    ]
    gangs = [TraceJob(name, JOBS[0], 600 / STEP_S, 0.0, 4, deadline_s=1e3) for name in ("first", "second")]
    later = [TraceJob(f"q{k}", JOBS[0], 3_000 / STEP_S, 1.0, deadline_s=1e6) for k in range(4)]
    cluster = ClusterSnapshot.from_mapping({"nodes": nodes})
    done = simulate(
        [*gangs, *later], cluster, get_policy(policy), SetTruth(TABLE), TABLE, SimulationConfig()
    ).jobs
    started_s = {j.id: j.started_s for j in done}
    assert started_s["first"] == 0.0
    assert all(started_s[f"q{k}"] < 61.0 for k in range(4))
