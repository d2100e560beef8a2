"""Jobs of `sia:` traces under policies that know step times, not goodput, and those that resize by either."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from profiling.errors import InfeasibleError
from scheduling.core.job import Allocation
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.policies import get_policy
from scheduling.policies.elastic_sizes import speeds
from scheduling.sia.application import CALIBRATION
from scheduling.simulator.assembly import build_scenario
from scheduling.simulator.engine import simulate
from scheduling.simulator.scenario_spec import ScenarioSpec
from tests.shared import shared_data


def job_list(folder: Path, rows: str) -> Path:
    """A workload file with these rows, beside the measured applications as in a clone of upstream."""
    (folder / "traces").symlink_to(shared_data("sia", "traces"))
    path = folder / "workloads" / "own" / "jobs.csv"
    path.parent.mkdir(parents=True)
    path.write_text(f"name,time,application,num_replicas,batch_size\n{rows}")
    return path


@pytest.mark.parametrize("device", ["t4", "rtx-2080-ti", "a100"])
def test_predicted_steps_are_those_in_which_progress_is_counted(tmp_path: Path, device: str) -> None:
    """Those of the initial batch: on one GPU a job with this batch runs as fast as policies expect."""
    batches = {"bert": 12, "cifar10": 128, "deepspeech2": 20, "imagenet": 200, "ncf": 256, "yolov3": 8}
    rows = "".join(f"{name},0,{name},1,{batch}\n" for name, batch in batches.items())
    path = job_list(tmp_path, rows)
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(f"nodes: [{{name: n, gpus: [{{device: {device}, count: {len(batches)}}}]}}]\n")
    scenario = build_scenario(ScenarioSpec(f"sia:{path}", str(cluster), kind="strong-scaling"))
    result = scenario.run("fifo")
    predicted = SetCache.of(scenario.belief)
    for job in result.jobs:
        assert job.finished_s is not None
        assert job.restarts == 0
        running_s = job.finished_s - job.agent.application.restart_s
        step_s = running_s / job.job.iterations / CALIBRATION[job.id]
        answer = predicted.answer(device, [job.job.workload])
        assert answer.step_time_s[0] == pytest.approx(step_s, rel=1e-6)


@pytest.mark.parametrize("policy", ["optimus", "optimus-shortest"])
def test_optimus_compares_times_left_in_seconds(policy: str) -> None:
    """Of an application with a batch of 8 and one of 256, the paces are steps of these per second."""
    path = shared_data("sia", "workloads", "philly", "workload-1.csv")
    scenario = build_scenario(ScenarioSpec(f"sia:{path}", "sia-64-homogeneous", limit=6))
    chosen, seen = get_policy(policy), 0

    def decide(snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
        nonlocal seen
        for job in snapshot.running.values():
            if job.rate > 0 and job.agent.gradient is not None and job.agent.params:
                (pace,) = speeds(snapshot, belief, job, [len(job.gpus)])
                actual = job.rate * CALIBRATION[job.agent.application.name]
                assert 0.5 * actual <= pace <= 2 * actual
                seen += 1
        return chosen.decide(snapshot, belief)

    watched = replace(chosen, decide=decide)
    simulate(
        scenario.jobs,
        scenario.cluster,
        watched,
        scenario.truth,
        scenario.belief,
        scenario.config,
        agent=scenario.agent,
    )
    assert seen > 10


@pytest.mark.parametrize("policy", ["pollux", "optimus", "optimus-shortest", "sia"])
@pytest.mark.parametrize("kind", ["adaptive", "strong-scaling"])
def test_a_job_that_may_be_resized_begins_on_one_gpu(tmp_path: Path, policy: str, kind: str) -> None:
    """Then it gets at most twice as many as before. No type has the 64 that it requests."""
    path = job_list(tmp_path, "wide,0,ncf,64,32768\n")
    scenario = build_scenario(ScenarioSpec(f"sia:{path}", "sia-64", kind=kind))
    result = scenario.run(policy, record=True)
    starts = Counter(interval.start_s for interval in result.intervals)
    held = [starts[start] for start in sorted(starts)]
    assert held[0] == 1
    assert all(now <= 2 * max(held[: k + 1]) for k, now in enumerate(held[1:]))


@pytest.mark.parametrize("policy", ["fifo", "gavel-sia", "isacpp"])
def test_a_job_too_large_for_a_policy_that_resizes_none_is_named_before_any_runs(
    tmp_path: Path, policy: str
) -> None:
    path = job_list(tmp_path, "small,0,ncf,1,256\nwide,60,ncf,64,32768\n")
    done: list[int] = []
    with pytest.raises(InfeasibleError, match="1 of 2 jobs can never run on this cluster: wide requests 64"):
        build_scenario(ScenarioSpec(f"sia:{path}", "sia-64")).run(policy, lambda k, _: done.append(k))
    assert not done
    scenario = build_scenario(ScenarioSpec(f"sia:{path}", "sia-64", skip_infeasible=True))
    assert [line.partition(" ")[0] for line in scenario.skipped] == ["wide"]
    assert [job.id for job in scenario.run(policy).jobs] == ["small"]
