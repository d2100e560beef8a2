from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from profiling.errors import InputError
from profiling.workload import Workload
from scheduling.beliefs.table import TablePredictor
from scheduling.core.job import TraceJob
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.policies.sia import SiaConfig, sia
from scheduling.sia.agent import Agent, Observation
from scheduling.sia.application import Application, load_applications
from scheduling.sia.goodput import BatchLimits, best_batch, efficiency
from scheduling.sia.throughput import ThroughputParams, fit, step_s
from scheduling.sia.truth import GoodputTruth
from scheduling.simulator.assembly import build_scenario
from scheduling.simulator.engine import SimulationConfig, simulate
from scheduling.simulator.scenario_spec import ScenarioSpec
from scheduling.traces.sia import read_sia
from tests.shared import shared_data

TRUE = ThroughputParams(0.02, 0.001, 0.05, 0.002, 0.01, 0.001, 2.0)


def observed(
    pairs: list[tuple[int, int]], batches: list[int]
) -> dict[tuple[int, int, int], tuple[float, float]]:
    steps = {}
    for nodes, replicas in pairs:
        for b in batches:
            step = float(step_s(TRUE, nodes, replicas, b))
            steps[nodes, replicas, b] = (step, step - (TRUE.alpha_c + TRUE.beta_c * b))
    return steps


def test_the_fit_recovers_step_times() -> None:
    profile = observed([(1, 1), (1, 2), (1, 4), (2, 8), (4, 16)], [16, 32, 64, 128])
    params = fit(profile)
    errors = [abs(np.log(float(step_s(params, *key)) / step)) for key, (step, _) in profile.items()]
    # The regularisation draws gamma to 1 and the terms per replica to 0, so it is near and not exact.
    assert np.mean(errors) < 0.1
    assert params.alpha_c == pytest.approx(TRUE.alpha_c, rel=0.02)
    assert params.beta_c == pytest.approx(TRUE.beta_c, rel=0.02)


def test_unobserved_communication_is_free() -> None:
    params = fit(observed([(1, 1)], [32, 64]))
    alone, four = float(step_s(params, 1, 1, 32)), float(step_s(params, 1, 4, 32))
    assert four == pytest.approx(alone, rel=1e-3)


def test_one_batch_size_does_not_tell_the_constant_from_the_slope() -> None:
    """Half of the time is the constant, half grows with the batch."""
    params = fit({(1, 1, 32): (0.2, 0.0)})
    assert params.alpha_c == pytest.approx(0.1)
    assert params.beta_c == pytest.approx(0.1 / 32, rel=0.01)


def test_efficiency_falls_with_the_batch() -> None:
    assert efficiency(128, 128, 1.0, 4.0) == pytest.approx(1.0)
    values = efficiency(np.array([128, 256, 512, 1024]), 128, 1.0, 4.0)
    assert (np.diff(values) < 0).all()
    # gain = (var + sqr) / (var / scale + sqr) = 5 / (2 + 1); over a scale of 2
    assert values[1] == pytest.approx(5 / 3 / 2)
    assert efficiency(256, 128, 0.0, 0.0) == 1 / 2  # without gradients a larger batch gains nothing


def test_best_batch_stays_within_limits() -> None:
    limits = BatchLimits(128, 4096, 32, 256)
    best = best_batch(TRUE, 1.0, 50.0, limits, np.array([1, 1, 2]), np.array([1, 4, 8]))
    total = np.array([1, 4, 8]) * best.local_batch * (best.accumulation + 1)
    assert ((best.local_batch >= 32) & (best.local_batch <= 256)).all()
    assert (total <= 4096 * 1.01).all()
    assert (np.diff(best.goodput) > 0).all()
    fixed = best_batch(TRUE, 1.0, 50.0, limits, np.array([1]), np.array([4]), fixed=512)
    assert int(fixed.local_batch[0]) == 128


TYPES = ["t4", "rtx-2080-ti", "a100"]


def made_up_agent() -> Agent:
    """An agent of a synthetic application on two types; `b` is twice as fast per GPU."""
    on = {
        d: SimpleNamespace(stages=1, single_samples_per_s=speed)
        for d, speed in (("a", 1.0), ("b", 2.0), ("c", 1.0))
    }
    application = SimpleNamespace(on=on, batches=[32, 1024], limits=lambda _: BatchLimits(32, 1024, 8, 256))
    return Agent(TraceJob("j", Workload("x"), 10.0, kind="adaptive"), cast(Application, application))


def test_a_batch_is_observed_after_it_has_run() -> None:
    agent = made_up_agent()
    agent.local_batch = 32
    agent.running = Observation(60.0, "a", (1,), 0.1, 0.0, (1.0, 2.0))
    agent.take_in(60.0, 10.0)  # chosen at this moment
    assert not agent.profiles["a"]
    agent.running = Observation(60.0, "a", (1,), 0.1, 0.0, (1.0, 2.0))
    agent.take_in(120.0, 90.0)  # stopped at 60 s and restarted since
    assert not agent.profiles["a"]
    agent.running = Observation(60.0, "a", (1,), 0.1, 0.0, (1.0, 2.0))
    agent.take_in(120.0, 10.0)
    assert agent.profiles["a"] == {(1, 1, 32): (0.1, 0.0)}
    assert agent.gradient == (1.0, 2.0)


def test_a_model_is_transferred_from_the_first_type_that_has_one() -> None:
    agent = made_up_agent()
    node_size = {"a": 4, "b": 8, "c": 8}
    agent.local_batch = 32
    # Seen on `c` first, then on `a`; `b` takes over from `a`, where eight GPUs are two nodes.
    agent.observe("c", (1,), 0.5, 0.0, (1.0, 2.0))
    for placement, step in (((1,), 0.1), ((4,), 0.12), ((4, 4), 0.2)):
        agent.observe("a", placement, step, 0.0 if placement == (1,) else 0.02, (1.0, 2.0))
    two_nodes = agent.goodput("a", np.array([2.0]), np.array([8.0]), node_size)
    carried = agent.goodput("b", np.array([1.0]), np.array([8.0]), node_size)
    assert carried is not None
    assert two_nodes is not None
    assert carried == pytest.approx(2.0 * two_nodes)


def test_measured_times_and_jobs() -> None:
    applications = load_applications(shared_data("sia", "traces"), TYPES)
    cifar = applications["cifar10"]
    step, sync = cifar.on["t4"].times_s((1,), 32)
    assert step == pytest.approx(0.0427886962890625)
    assert sync == pytest.approx(0.0004995360016822816)
    assert cifar.on["t4"].times_s((1, 4), 64) == cifar.on["t4"].times_s((4, 1), 64)
    jobs = read_sia(shared_data("sia", "workloads", "philly", "workload-1.csv"), applications)
    assert len(jobs) == 160
    assert jobs[0].application == "cifar10"
    assert jobs[0].iterations == cifar.progress(100)


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("a,0,cifar10,,128,", "line 2: num_replicas"),
        ("a,0,cifar10,1.5,128,", "line 2: num_replicas"),
        ("a,0,cifar10,1,many,", "line 2: batch_size"),
        ("a,0,cifar10,1,1000000000,", "line 2: batch_size: expected 128 to 4096"),
        ("a,0,cifar10,1,64,", "line 2: batch_size: expected 128 to 4096"),
        ("a,soon,cifar10,1,128,", "line 2: time"),
        ("a,0,cifar10,1,128,scale-everything", "line 2: unknown category"),
        ("a,0,chess,1,128,", "line 2: application"),
        ("\na,0,chess,1,128,", "line 3: application was not measured on the cluster"),
        ("", "has no jobs"),
        ("\n", "has no jobs"),
    ],
)
def test_faulty_cells_of_a_job_list_are_named(tmp_path: Path, row: str, fault: str) -> None:
    applications = load_applications(shared_data("sia", "traces"), TYPES)
    path = tmp_path / "jobs.csv"
    path.write_text(f"name,time,application,num_replicas,batch_size,category\n{row}\n")
    with pytest.raises(InputError, match=fault):
        read_sia(path, applications)


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("placements-aws.csv", "", "placements-aws.csv is not a measured table"),
        ("placements-aws.csv", "placement,local_bsz,sync_time\n1,4,0\n", "got no step_time"),
        ("placements-aws.csv", "placement,local_bsz,step_time,sync_time\n", "got no rows"),
        (
            "placements-aws.csv",
            "placement,local_bsz,step_time,sync_time\n1,4,1,0\n1,8,0,0\n",
            "line 3: step_time",
        ),
        ("placements-aws.csv", "placement,local_bsz,step_time,sync_time\n1,many,1,0\n", "line 2: local_bsz"),
        ("placements-aws.csv", "placement,local_bsz,step_time,sync_time\nx,4,1,0\n", "line 2: placement"),
        (
            "placements-aws.csv",
            "placement,local_bsz,step_time,sync_time,step_time\n1,4,1,0,2\n",
            "placements-aws.csv has a column twice: .* got step_time",
        ),
        ("scalability-aws.csv", None, "scalability-aws.csv is not a measured table"),
        ("validation-12.csv", "progress,grad_sqr,grad_var\n1,1,1\n", "2 epochs, got 1"),
        ("validation-12.csv", "progress,grad_sqr,grad_var\n1,1,1\n2,,1\n", "line 3: grad_sqr"),
    ],
)
def test_faulty_tables_of_an_application_are_named(
    tmp_path: Path, name: str, text: str | None, fault: str
) -> None:
    copy = tmp_path / "bert"
    copy.mkdir()
    for path in shared_data("sia", "traces", "bert").iterdir():
        (copy / path.name).symlink_to(path)
    (copy / "validation-old.csv").write_text("not read\n")
    assert load_applications(tmp_path, ["t4"])["bert"].max_epochs == 2
    (copy / name).unlink()
    if text is not None:
        (copy / name).write_text(text)
    with pytest.raises(InputError, match=fault):
        load_applications(tmp_path, ["t4"])


def test_a_job_list_with_a_column_twice(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("name,time,application,num_replicas,batch_size,time\na,0,cifar10,1,128,5\n")
    with pytest.raises(InputError, match=r"a column twice: .* got time"):
        read_sia(path, {})


def test_a_job_list_is_read_by_submission(tmp_path: Path) -> None:
    applications = load_applications(shared_data("sia", "traces"), TYPES)
    path = tmp_path / "jobs.csv"
    path.write_text(
        "name,time,application,num_replicas,batch_size,category\n"
        "late,9.5,cifar10,2.0,128,rigid\n\nearly,1,cifar10,1,256,\n"
    )
    early, late = read_sia(path, applications)
    assert (early.id, early.submit_s, early.gpus, early.batch_size, early.kind) == (
        "early",
        1.0,
        1,
        256,
        "adaptive",
    )
    assert (late.id, late.submit_s, late.gpus, late.batch_size, late.kind) == ("late", 9.5, 2, 128, "rigid")


@pytest.mark.parametrize("path", ["/", "/jobs.csv"])
def test_applications_of_a_file_near_the_root(path: str) -> None:
    with pytest.raises(InputError, match=f"no trace {path}"):
        build_scenario(ScenarioSpec(f"sia:{path}", "sia-64"))


@pytest.mark.parametrize("kind", ["adaptive", "strong-scaling", "rigid"])
def test_kinds_of_jobs_run_through(kind: str) -> None:
    path = shared_data("sia", "workloads", "philly", "workload-1.csv")
    scenario = build_scenario(ScenarioSpec(f"sia:{path}", "sia-64", limit=8, kind=kind))
    result = scenario.run("sia", record=True)
    assert all(j.finished_s is not None for j in result.jobs)
    if kind == "rigid":
        held: dict[tuple[int, float], int] = {}
        for interval in result.intervals:
            held[interval.job, interval.start_s] = held.get((interval.job, interval.start_s), 0) + 1
        assert {n == result.jobs[job].job.gpus for (job, _), n in held.items()} == {True}
    if kind == "adaptive":
        assert result.to_json()["restarts"] > 0


def test_a_rigid_job_with_few_samples_per_gpu_runs() -> None:
    applications = load_applications(shared_data("sia", "traces"), ["t4"])
    yolo = applications["yolov3"]
    job = TraceJob(
        "j", Workload("yolov3"), yolo.progress(1), gpus=4, application="yolov3", kind="rigid", batch_size=8
    )
    truth = GoodputTruth(applications)
    cluster = ClusterSnapshot.from_mapping({"nodes": [{"name": "n", "gpus": [{"device": "t4", "count": 4}]}]})
    config = SimulationConfig(reevaluate_each_round=True)
    result = simulate(
        [job], cluster, sia(SiaConfig()), truth, TablePredictor({}, {}), config, agent=truth.agent
    )
    # Two samples per GPU, fewer than were measured, in one start.
    assert result.jobs[0].finished_s is not None
    assert result.jobs[0].restarts == 0


def test_a_job_without_gradients_runs_at_its_throughput() -> None:
    applications = load_applications(shared_data("sia", "traces"), ["t4"])
    cifar = applications["cifar10"]
    cifar.gradient = lambda batch, epoch: (0.0, 0.0)  # type: ignore[method-assign]
    job = TraceJob("j", Workload("cifar10"), cifar.progress(1), application="cifar10", batch_size=256)
    truth = GoodputTruth(applications)
    cluster = ClusterSnapshot.from_mapping({"nodes": [{"name": "n", "gpus": [{"device": "t4"}]}]})
    config = SimulationConfig(reevaluate_each_round=True)
    result = simulate(
        [job], cluster, sia(SiaConfig()), truth, TablePredictor({}, {}), config, agent=truth.agent
    )
    assert result.jobs[0].finished_s is not None


@pytest.mark.parametrize(
    ("kind", "stages", "seen", "most"),
    [
        ("adaptive", 1, 0, 1),
        ("adaptive", 1, 4, 8),
        ("strong-scaling", 1, 0, 1),
        ("strong-scaling", 1, 2, 4),
        ("strong-scaling", 1, 4, 6),
        ("rigid", 1, 0, 6),
        ("hybrid", 8, 0, 1),
        ("hybrid", 8, 8, 2),
        ("hybrid", 8, 16, 4),
    ],
)
def test_a_job_at_most_doubles(kind: str, stages: int, seen: int, most: int) -> None:
    application = SimpleNamespace(
        on={"a": SimpleNamespace(stages=stages)},
        batches=[32, 1024],
        limits=lambda _: BatchLimits(32, 1024, 8, 256),
    )
    job = TraceJob("j", Workload("x"), 10.0, gpus=6, kind=kind, batch_size=128)
    agent = Agent(job, cast(Application, application))
    if seen:
        agent.observe("a", (seen,), 0.5, 0.1, (1.0, 2.0))
    assert agent.most_gpus() == most


def test_a_hybrid_job_runs_on_whole_pipelines() -> None:
    applications = load_applications(shared_data("sia", "traces"), TYPES)
    gpt = applications["gpt_pmp"]
    from profiling.workload import Workload

    job = TraceJob(
        "gpt",
        Workload("gpt_pmp"),
        gpt.progress(gpt.max_epochs),
        application="gpt_pmp",
        kind="hybrid",
        gpus=8,
        batch_size=384,
    )
    truth = GoodputTruth(applications)
    cluster = ClusterSnapshot.from_mapping(
        {
            "nodes": [
                {"name": "r", "count": 2, "gpus": [{"device": "rtx-2080-ti", "count": 8}]},
                {"name": "a", "gpus": [{"device": "a100", "count": 8}]},
            ]
        }
    )
    config = SimulationConfig(record=True, free_moves=True, reevaluate_each_round=True)
    result = simulate(
        [job], cluster, sia(SiaConfig()), truth, TablePredictor({}, {}), config, agent=truth.agent
    )
    counts: dict[float, int] = {}
    for interval in result.intervals:
        counts[interval.start_s] = counts.get(interval.start_s, 0) + 1
    assert set(counts.values()) <= {2, 4, 8, 16}


def test_a_placement_that_no_pipeline_was_measured_on_is_named() -> None:
    gpt = load_applications(shared_data("sia", "traces"), TYPES)["gpt_pmp"]
    with pytest.raises(
        InputError, match=r"pipeline of 2 stages on a100: expected 2, 4, 6, 8 GPUs of a node.*got 1 \+ 1"
    ):
        gpt.on["a100"].times_s((1, 1), 1)
