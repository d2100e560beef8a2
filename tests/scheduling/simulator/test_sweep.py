"""The same policies on the same scenario, in this process and on Ray."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from profiling.errors import InputError, UnavailableError
from scheduling.core.job import TraceJob
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.truth import SetTruth
from scheduling.policies import get_policy
from scheduling.simulator import sweep
from scheduling.simulator.engine import SimulationConfig, simulate
from scheduling.simulator.result import SimulationResult
from scheduling.simulator.scenario_spec import ScenarioSpec
from scheduling.traces.remarks import RowCount
from tests.scheduling.tables import JOBS, table
from tests.waiting import until

SPEC = ScenarioSpec("synthetic:rate=30,jobs=6", "small-mixed", seed=3)
TIMES = ("mean_decision_s", "p99_decision_s")


def compare(spec: ScenarioSpec, policies: list[str], **options: Any) -> list[dict[str, Any]]:
    return sweep.summarize(sweep.run_all(spec, policies, **options))


class SmallScenario:
    """Stands for the result of `build_scenario`, with synthetic tables."""

    def __init__(self, spec: ScenarioSpec) -> None:
        self.spec = spec
        self.skipped: list[str] = []
        self.remarks: list[RowCount] = []

    def run(
        self, policy: str, on_progress: Callable[[int, int], None] | None = None, record: bool = False
    ) -> SimulationResult:
        cluster = ClusterSnapshot.from_mapping(
            {"nodes": [{"name": "n", "gpus": [{"device": "v100", "count": 2}]}]}
        )
        jobs = [
            TraceJob(f"job-{k}", JOBS[(k + self.spec.seed) % 5], 100.0 * (k + 1), float(k)) for k in range(6)
        ]
        truth, config = table(), SimulationConfig(record=record)
        return simulate(jobs, cluster, get_policy(policy), SetTruth(truth), truth, config, on_progress)


class Remembering(SmallScenario):
    """Its truth depends on earlier queries, as a predictor's last digits depend on the batch."""

    def __init__(self, spec: ScenarioSpec) -> None:
        super().__init__(spec)
        self.asked = 0

    def run(self, policy: str, *arguments: Any, **options: Any) -> SimulationResult:
        result = super().run(policy, *arguments, **options)
        for job in result.jobs:
            job.finished_s = (job.finished_s or 0.0) * (1 + 1e-12 * self.asked)
        self.asked += 1
        return result


class Remote:
    """A task of the stand-in; arguments and results are pickled, as between processes."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def remote(self, *arguments: Any) -> bytes:
        return pickle.dumps(self.function(*pickle.loads(pickle.dumps(arguments))))


class LostWorkerError(Exception):
    """Like `ray.exceptions.RayError`."""


def stand_in(calls: list[str]) -> types.ModuleType:
    ray: Any = types.ModuleType("ray")
    ray.is_initialized = lambda: False
    ray.init = lambda **_: calls.append("init")
    ray.shutdown = lambda: calls.append("shutdown")
    ray.remote = Remote
    ray.get = lambda answers: [pickle.loads(a) for a in answers]
    ray.exceptions = types.SimpleNamespace(RayError=LostWorkerError)
    return ray  # type: ignore[no-any-return]


def timeless(bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in body.items() if k not in TIMES} for body in bodies]


def test_ray_gives_the_same_results_as_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "build_scenario", SmallScenario)
    calls: list[str] = []
    monkeypatch.setitem(sys.modules, "ray", stand_in(calls))
    names = ["exclusive", "isacpp", "isacpp-online"]
    here, on_ray = (compare(SPEC, names, use_ray=use) for use in (False, True))
    assert timeless(on_ray) == timeless(here)
    assert [body["policy"] for body in on_ray] == names
    assert calls == ["init", "shutdown"]


def test_a_lost_worker_loses_only_its_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sweep, "build_scenario", SmallScenario)
    ray = stand_in([])
    asked: list[bytes] = []

    def get(answers: list[bytes]) -> list[Any]:
        asked.extend(answers)
        if len(asked) == 2:
            raise LostWorkerError("The actor died unexpectedly.\nThe node was lost.")
        return [pickle.loads(a) for a in answers]

    ray.get = get
    monkeypatch.setitem(sys.modules, "ray", ray)
    runs = sweep.run_all(SPEC, ["exclusive"], seeds=2, loads=[0.5, 0.9], use_ray=True, out=tmp_path)
    assert [run.error for run in runs] == ["", "Ray: The node was lost.", "", ""]
    kept = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert [(run["load"], run["seed"], "error" in run) for run in kept] == [
        (0.5, 3, False), (0.5, 4, True), (0.9, 3, False), (0.9, 4, False),
    ]  # fmt: skip


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnavailableError, match=r"cotenant\[ray\]"):
        compare(SPEC, ["exclusive"], use_ray=True)


def test_a_ray_cluster_that_does_not_respond(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> None:
        raise ConnectionError("failed to connect to Ray cluster at 10.0.0.1:6379")

    ray = stand_in([])
    ray.init = init
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(UnavailableError, match=r"RAY_ADDRESS.*10\.0\.0\.1"):
        compare(SPEC, ["exclusive"], use_ray=True)


def test_on_a_real_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the extra is installed: workers build the scenario themselves, from its description alone."""
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    names = ["fifo", "exclusive"]
    here, on_ray = (compare(SPEC, names, use_ray=use) for use in (False, True))
    assert timeless(on_ray) == timeless(here)


def test_several_seeds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sweep, "build_scenario", SmallScenario)
    reports: list[tuple[str, int, int, int]] = []
    runs = sweep.run_all(
        SPEC, ["exclusive", "isacpp"], seeds=3, out=tmp_path, report=lambda *values: reports.append(values)
    )
    assert [(r.policy, r.seed) for r in runs] == [(p, s) for p in ("exclusive", "isacpp") for s in (3, 4, 5)]
    first = sweep.summarize(runs)[0]
    own = [r.result.to_json()["mean_jct_s"] for r in runs[:3] if r.result]
    assert first["mean_jct_s"] == pytest.approx(sum(own) / 3)
    assert first["standard_error"]["mean_jct_s"] > 0
    assert first["seeds"] == [3, 4, 5]
    assert reports[-1][-1] == 6
    assert ("exclusive, seed 3", 6, 6, 0) in reports
    body = json.loads((tmp_path / "results.json").read_text())
    assert [run["seed"] for run in body["runs"]] == [3, 4, 5] * 2
    names = {p.name for p in tmp_path.iterdir()}
    assert {"summary.png", "jct_cdf.png", "queue.png", "utilization.png", "gantt-isacpp.png"} <= names


class FromALog(SmallScenario):
    def __init__(self, spec: ScenarioSpec) -> None:
        super().__init__(spec)
        self.remarks = [RowCount("duration is empty", 2), RowCount("gpus is a share", 1, kept=True)]


def test_rows_of_the_log_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "build_scenario", FromALog)
    for body in compare(SPEC, ["fifo", "exclusive"], seeds=2):
        assert body["ignored_rows"] == {"duration is empty": 2}
        assert body["changed_rows"] == {"gpus is a share": 1}
    monkeypatch.setattr(sweep, "build_scenario", SmallScenario)
    assert "ignored_rows" not in compare(SPEC, ["fifo"])[0]


class Breaking(SmallScenario):
    def run(self, policy: str, *arguments: Any, **options: Any) -> SimulationResult:
        if policy == "blind":
            raise InputError("nothing for blind")
        if policy == "sjf":
            raise KeyboardInterrupt
        return super().run(policy, *arguments, **options)


def test_a_run_does_not_depend_on_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "build_scenario", Remembering)
    after_others = compare(SPEC, ["fifo", "blind", "isacpp"])[2]
    assert timeless([after_others]) == timeless(compare(SPEC, ["isacpp"]))


class OneSeedFails(SmallScenario):
    """The first policy cannot run seed 3, and each seed skips different jobs."""

    def __init__(self, spec: ScenarioSpec) -> None:
        super().__init__(spec)
        self.skipped = [f"job-{spec.seed} is too wide"]

    def run(self, policy: str, *arguments: Any, **options: Any) -> SimulationResult:
        if policy == "fifo" and self.spec.seed == 3:
            raise InputError("nothing for fifo")
        return super().run(policy, *arguments, **options)


def test_results_list_their_seeds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sweep, "build_scenario", OneSeedFails)
    some, both = compare(SPEC, ["fifo", "sjf"], seeds=2, out=tmp_path)
    assert (some["seeds"], both["seeds"]) == ([4], [3, 4])
    assert some["error"] == "nothing for fifo."
    kept = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert [run["skipped"] for run in kept] == [[f"job-{seed} is too wide"] for seed in (3, 4, 3, 4)]


def test_a_failing_policy_and_an_interrupt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sweep, "build_scenario", Breaking)
    bodies = compare(SPEC, ["fifo", "blind", "exclusive", "sjf", "isacpp"], out=tmp_path)
    assert ["jobs" in body for body in bodies] == [True, False, True, False, False]
    assert bodies[1] == {"policy": "blind", "error": "nothing for blind."}
    assert bodies[4]["error"] == "interrupted"
    kept = json.loads((tmp_path / "results.json").read_text())["policies"]
    assert [body["policy"] for body in kept] == ["fifo", "blind", "exclusive"]
    with pytest.raises(KeyboardInterrupt):
        compare(SPEC, ["sjf"])


def test_loads_are_separate_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "build_scenario", SmallScenario)
    runs = sweep.run_all(SPEC, ["fifo", "sjf"], loads=(0.5, 2.0))
    assert [(r.policy, r.load) for r in runs] == [("fifo", 0.5), ("sjf", 0.5), ("fifo", 2.0), ("sjf", 2.0)]
    bodies = sweep.summarize(runs)
    assert [(b["policy"], b["load"]) for b in bodies] == [(r.policy, r.load) for r in runs]
    assert runs[2].label == "fifo at load 2, seed 3"


def test_a_figure_missing_in_one_seed_has_no_mean() -> None:
    cluster = ClusterSnapshot.from_mapping({"nodes": [{"name": "n", "gpus": [{"device": "v100"}]}]})

    def run(seed: int, deadline_s: float | None) -> sweep.Run:
        job = TraceJob("j", JOBS[0], 10.0, deadline_s=deadline_s)
        result = simulate([job], cluster, get_policy("edf"), SetTruth(table()), table())
        return sweep.Run("edf", seed, result)

    for runs in ([run(1, 5.0), run(2, None)], [run(1, None), run(2, 5.0)]):
        (body,) = sweep.summarize(runs)
        assert body["mean_jct_s"] == body["max_jct_s"]
        assert not {"deadlines", "deadlines_met_ratio"} & {*body, *body["standard_error"]}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing ends a process with its parent")
def test_workers_end_with_a_killed_process() -> None:
    code = "import time; from scheduling.simulator import sweep; sweep._run = time.sleep; "
    code += "list(sweep._in_processes([(3600.0,)] * 2, 2))"
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        started = psutil.Process(parent.pid)
        workers = until(lambda: w if len(w := _workers(started)) == 2 else None, "both workers run")
        parent.kill()
    until(lambda: not any(map(_runs, workers)), "the workers end")


def _workers(process: psutil.Process) -> list[psutil.Process]:
    return [c for c in process.children() if "--multiprocessing-fork" in c.cmdline()]


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
