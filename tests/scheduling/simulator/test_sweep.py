"""The same policies on the same scenario: in this process and on Ray."""

from __future__ import annotations

import pickle
import sys
import types
from typing import Any

import pytest

from profiling.errors import UnavailableError
from scheduling.core.job import TraceJob
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.truth import SetTruth
from scheduling.policies import get_policy
from scheduling.simulator import sweep
from scheduling.simulator.engine import SimulationConfig, simulate
from scheduling.simulator.result import SimulationResult
from scheduling.simulator.scenario import ScenarioSpec
from tests.scheduling.tables import JOBS, table

SPEC = ScenarioSpec("synthetic:rate=30,jobs=6", "small-mixed", seed=3)
TIMES = ("mean_decision_s", "p99_decision_s")


class SmallScenario:
    """What `build_scenario` would make, from made-up tables."""

    def __init__(self, spec: ScenarioSpec) -> None:
        self.spec = spec

    def run(self, policy: str, record: bool = False) -> SimulationResult:
        cluster = ClusterSnapshot.from_mapping(
            {"nodes": [{"name": "n", "gpus": [{"device": "v100", "count": 2}]}]}
        )
        jobs = [
            TraceJob(f"job-{k}", JOBS[(k + self.spec.seed) % 5], 100.0 * (k + 1), float(k)) for k in range(6)
        ]
        truth, config = table(), SimulationConfig(record=record)
        return simulate(jobs, cluster, get_policy(policy), SetTruth(truth), truth, config)


class Remote:
    """A task of the stand-in: arguments and results go through pickle, as between processes."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def remote(self, *arguments: Any) -> bytes:
        return pickle.dumps(self.function(*pickle.loads(pickle.dumps(arguments))))


def stand_in(calls: list[str]) -> types.ModuleType:
    ray: Any = types.ModuleType("ray")
    ray.is_initialized = lambda: False
    ray.init = lambda **_: calls.append("init")
    ray.shutdown = lambda: calls.append("shutdown")
    ray.remote = Remote
    ray.get = lambda answers: [pickle.loads(a) for a in answers]
    return ray  # type: ignore[no-any-return]


def timeless(bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in body.items() if k not in TIMES} for body in bodies]


def test_ray_answers_as_this_process_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "build_scenario", SmallScenario)
    calls: list[str] = []
    monkeypatch.setitem(sys.modules, "ray", stand_in(calls))
    names = ["exclusive", "isacpp", "isacpp-online"]
    here, there = (sweep.compare(SPEC, names, use_ray=use) for use in (False, True))
    assert timeless(there) == timeless(here)
    assert [body["policy"] for body in there] == names
    assert calls == ["init", "shutdown"]


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnavailableError, match=r"cotenant\[ray\]"):
        sweep.compare(SPEC, ["exclusive"], use_ray=True)


def test_on_a_real_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the extra is installed: workers build the scenario themselves, from its words alone."""
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    names = ["fifo", "exclusive"]
    here, there = (sweep.compare(SPEC, names, use_ray=use) for use in (False, True))
    assert timeless(there) == timeless(here)
