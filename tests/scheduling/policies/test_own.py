"""User-defined policies: loaded by name, and held to the contract in docs/policies.md."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from profiling.errors import InputError
from scheduling.core.job import Allocation, TraceJob
from scheduling.core.policy import Policy, PolicyError
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import SetTruth
from scheduling.policies import get_policy
from scheduling.simulator.engine import simulate
from tests.scheduling.tables import JOBS, table

CLUSTER = ClusterSnapshot.from_mapping(
    {"nodes": [{"name": "n", "gpus": [{"device": "v100", "count": 2}, {"device": "k80"}]}]}
)


@pytest.fixture
def module() -> Iterator[Any]:
    made: Any = types.ModuleType("own_policies_of_test")
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


def run(name: str, gpus: int = 1) -> int:
    jobs = [TraceJob(f"job-{k}", JOBS[k], 100.0, float(k), gpus=gpus) for k in range(4)]
    return len(simulate(jobs, CLUSTER, get_policy(name), SetTruth(table()), table()).jobs)


def first_empty(snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
    empty = [g for g in range(len(snapshot)) if not snapshot.tenants[g]]
    return [Allocation(j, (g,)) for j, g in zip(snapshot.waiting.values(), empty, strict=False)]


def test_policy_and_function(module: Any) -> None:
    module.decide, module.POLICY = first_empty, Policy("first-empty", first_empty, round_s=60.0)
    assert get_policy("own_policies_of_test:decide").name == "decide"
    assert get_policy("own_policies_of_test:POLICY").round_s == 60.0
    assert run("own_policies_of_test:decide") == run("own_policies_of_test:POLICY") == 4


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere_at_all:POLICY", "cannot be imported"),
        ("own_policies_of_test:NOTHING", "cannot be imported"),
        ("own_policies_of_test:NUMBER", "is not a policy"),
        ("own_policies_of_test:Class", "is not a policy"),
        ("os:system", "a function .command"),
        ("builtins:max", "a built-in function"),
    ],
)
def test_invalid_policies(module: Any, name: str, message: str) -> None:
    module.NUMBER, module.Class = 7, dict
    with pytest.raises(InputError, match=message):
        get_policy(name)


@pytest.mark.parametrize(
    ("decide", "message"),
    [
        (lambda s, b: None, "no list"),
        (lambda s, b: [][0], "test:decide raised IndexError: list index out of range"),
        (lambda s, b: [(next(iter(s.waiting.values())), 0)], "something other"),
        (lambda s, b: [Allocation(j, (99,)) for j in s.waiting.values()], "0 to 2"),
        (lambda s, b: [Allocation(j, 0) for j in s.waiting.values()], "tuple of GPU numbers"),
        (lambda s, b: [Allocation(j, (0, 0)) for j in s.waiting.values()], "different"),
        (lambda s, b: [Allocation(j, (0, 2)) for j in s.waiting.values()], "one type"),
        (lambda s, b: [Allocation(j, (0, 1)) for j in s.waiting.values()], "gang"),
        (lambda s, b: [Allocation(j, (0,)) for j in s.waiting.values()] * 2, "two allocations"),
    ],
)
def test_infeasible_decisions(module: Any, decide: Any, message: str) -> None:
    module.decide = decide
    with pytest.raises(PolicyError, match=message):
        run("own_policies_of_test:decide")


def test_a_finished_job(module: Any) -> None:
    seen: list[Any] = []

    def decide(snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
        seen.extend(snapshot.waiting.values())
        done = [j for j in seen if j.finished_s is not None]
        return [Allocation(done[0], (0,))] if done else first_empty(snapshot, belief)

    module.decide = decide
    with pytest.raises(PolicyError, match="neither waiting nor running"):
        run("own_policies_of_test:decide")


def test_predictions_keep_the_order_of_jobs() -> None:
    cache = SetCache(table())
    answer, turned = cache.answer("v100", [JOBS[3], JOBS[1]]), cache.answer("v100", [JOBS[1], JOBS[3]])
    assert answer.slowdown == turned.slowdown[::-1]
    assert answer.step_time_s == turned.step_time_s[::-1]
    assert answer.step_time_s[0] == pytest.approx(0.4 * answer.slowdown[0])
    assert answer.fits
    assert answer.memory_upper_bytes == pytest.approx(4 * 2**30)


@pytest.mark.parametrize("round_s", [0, -5.0, float("nan"), float("inf"), "60"])
def test_rounds_of_no_length_are_refused(round_s: Any) -> None:
    with pytest.raises(InputError, match="policy mine: round_s"):
        Policy("mine", lambda _snapshot, _belief: [], round_s=round_s)


def _both_gpus(module: Any, job: TraceJob, later: tuple[int, ...]) -> int:
    """Restarts of `job`, which starts on both V100 and is then given `later` in every round."""

    def decide(snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
        return [Allocation(j, later if j.gpus else (0, 1)) for j in snapshot.active()]

    module.POLICY = Policy("both", decide, round_s=60.0, preemptive=True)
    policy = get_policy("own_policies_of_test:POLICY")
    return simulate([job], CLUSTER, policy, SetTruth(table()), table()).jobs[0].restarts


def test_the_order_of_a_jobs_gpus_is_no_move(module: Any) -> None:
    assert _both_gpus(module, TraceJob("gang", JOBS[0], 3000.0, gpus=2), (1, 0)) == 0


def test_an_elastic_job_stays_in_its_range(module: Any) -> None:
    elastic = TraceJob("elastic", JOBS[0], 3000.0, gpus=2, min_gpus=2, max_gpus=4)
    assert _both_gpus(module, elastic, (0, 1)) == 0
    with pytest.raises(PolicyError, match="job elastic is elastic"):
        _both_gpus(module, elastic, (0,))
