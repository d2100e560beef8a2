"""Allocations compared with the public cases: always the objective, and each cell that is unique."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.types import Floats
from scheduling.gavel.problem import AllocationProblem
from scheduling.gavel.programs import blind_speeds, finish_time_fair, max_min, max_sum
from scheduling.gavel.rules import allox, fifo, isolated, isolated_speed
from tests.shared import shared_data


def cases() -> list[dict[str, Any]]:
    try:
        path = shared_data("gavel", "policy_cases.json")
    except pytest.skip.Exception:
        return []
    body: list[dict[str, Any]] = json.loads(path.read_text())["cases"]
    return body


CASES = cases()


def problem_of(
    case: dict[str, Any], throughputs: dict[str, Any] | None = None
) -> tuple[AllocationProblem, list[str], list[str]]:
    """The problem, and the names of rows and types."""
    table = throughputs or case["throughputs"]
    types = list(case["worker_counts"])
    singles = [name for name in table if "+" not in name]
    scales = case["scale_factors"]
    gpus = [1 if isinstance(scales, str) else scales[name] for name in singles]
    alone = np.array([[table[name][t] for t in types] for name in singles])
    pairs = {}
    for name in table:
        if "+" in name:
            a, b = (singles.index(part) for part in name.split("+"))
            pairs[a, b] = np.array([table[name][t] for t in types], float)
    problem = AllocationProblem.of(alone, gpus, [case["worker_counts"][t] for t in types], pairs)
    return problem, [*singles, *(n for n in table if "+" in n)], types


def check(
    problem: AllocationProblem, x: Floats, expected: dict[str, Any], rows: list[str], types: list[str]
) -> None:
    assert (x >= -1e-9).all()
    matrix, bound = problem.limits()
    if len(x) == len(problem.rows):
        assert (matrix @ x.ravel() <= bound + 1e-7).all()
    ranges = expected.get("allocation_range")
    for name, cells in expected["allocation"].items():
        for kind, value in cells.items():
            low, high = ranges[name][kind] if ranges else (value, value)
            if expected.get("unique", True) or high - low < 1e-4:
                assert x[rows.index(name), types.index(kind)] == pytest.approx(value, abs=2e-3), (name, kind)


def max_min_objective(problem: AllocationProblem, x: Floats, weights: Floats) -> float:
    speed = problem.progress() @ x.ravel()
    return float((problem.gpus * speed / (weights * problem.equal_share())).min())


@pytest.mark.parametrize("case", CASES, ids=[c["id"] for c in CASES])
def test_public_cases(case: dict[str, Any]) -> None:
    policy = case["policy"]
    if policy == "allox":
        check_allox(case)
        return
    problem, rows, types = problem_of(case)
    weights = np.array([case["priority_weights"][name] for name in rows[: problem.jobs]], float)
    if policy.startswith("finish_time_fairness"):
        check_finish_time(case, problem, rows, types)
        return
    expected = case["expected"]
    if policy.startswith("max_min_fairness"):
        blind = policy == "max_min_fairness"
        x = max_min(problem, weights, blind)
        seen = problem
        if blind:
            ones = np.zeros_like(problem.speed)
            ones[:, :, 0] = 1.0
            seen = AllocationProblem(problem.rows, ones, problem.gpus, problem.counts)
        assert max_min_objective(seen, x, weights) == pytest.approx(expected["objective"], rel=1e-6)
        share = problem.equal_share() if not blind else seen.equal_share()
        assert share == pytest.approx(
            [case["equal_share_throughput"][n] for n in rows[: problem.jobs]], rel=1e-5
        )
    elif policy.startswith("max_sum_throughput"):
        costs = np.array([case["instance_costs"][t] for t in types]) if "instance_costs" in case else None
        deadlines = {
            rows.index(n): case["slo_steps_remaining"][n] / seconds
            for n, seconds in case.get("slo_seconds", {}).items()
        }
        x = max_sum(problem, costs, deadlines)
        per_cell = np.asarray(problem.progress().sum(axis=0)).reshape(x.shape) / (
            1.0 if costs is None else costs
        )
        assert float((per_cell * x).sum()) == pytest.approx(expected["objective"], rel=1e-6)
    elif policy.startswith("fifo"):
        x = fifo(problem, 1.5 if policy == "fifo_packed" else None)
    else:
        assert policy in ("isolated", "proportional")
        x = isolated(problem)
    check(problem, x, expected, rows, types)


def check_finish_time(
    case: dict[str, Any], problem: AllocationProblem, rows: list[str], types: list[str]
) -> None:
    if case["policy"] == "finish_time_fairness":
        problem = blind_speeds(problem, types.index("v100"))
    names = rows[: problem.jobs]
    for call in case["calls"]:
        given = {
            k: np.array([call[k][n] for n in names], float)
            for k in ("seconds_since_start", "steps_remaining", "cumulative_isolated_s")
        }
        speed = isolated_speed(problem)
        assert speed == pytest.approx([call["isolated_throughput"][n] for n in names], rel=1e-5)
        duration = given["cumulative_isolated_s"] + given["steps_remaining"] / speed
        x = finish_time_fair(problem, given["seconds_since_start"], given["steps_remaining"], duration)
        rho = (
            given["seconds_since_start"] + given["steps_remaining"] / (problem.progress() @ x.ravel())
        ) / duration
        assert rho.max() == pytest.approx(call["expected"]["objective"], rel=1e-5)
        check(problem, x, call["expected"], rows, types)


def check_allox(case: dict[str, Any]) -> None:
    before: dict[str, int] = {}
    for call in case["calls"]:
        problem, names, types = problem_of(case, call["throughputs"])
        since = call["seconds_since_start"]
        elapsed = np.array([since[n] if isinstance(since, dict) else since for n in names], float)
        left = np.array([call["steps_remaining"][n] for n in names], float)
        held = {names.index(n): kind for n, kind in before.items() if n in names}
        x = allox(problem, elapsed, left, held)
        check(problem, x, call["expected"], names, types)
        before = {n: int(x[k].argmax()) for k, n in enumerate(names) if x[k].any()}


def test_all_public_cases_are_covered() -> None:
    shared_data("gavel", "policy_cases.json")
    assert len(CASES) == 49


def test_the_floor_does_not_leave_gpus_idle() -> None:
    problem = AllocationProblem.of(np.array([[1.0, 0.0], [1.0, 1.0]]), [1, 1], [1, 1])
    x = max_min(problem)
    assert x.sum() == pytest.approx(2.0)


def test_the_blind_baseline_shares_time_whatever_the_speeds() -> None:
    for slow in (0.1, 0.0):
        problem = AllocationProblem.of(np.array([[1.0, slow], [1.0, 1.0], [1.0, 1.0]]), [1, 1, 1], [1, 1])
        np.testing.assert_allclose(max_min(problem, blind=True).sum(axis=1), 2 / 3)


@pytest.mark.parametrize("factor", [2.0, 0.1, 1e6, 1e-8])
@pytest.mark.parametrize("blind", [False, True])
def test_a_factor_common_to_all_priorities_changes_nothing(blind: bool, factor: float) -> None:
    alone = np.array([[1.0, 0.5, 0.25], [4.0, 3.0, 1.0], [2.0, 2.0, 1.0]])[[0, 1, 2, 0, 1, 2, 0, 1]]
    problem = AllocationProblem.of(alone, [1, 1, 1, 2, 1, 1, 2, 1], [3, 4, 5])
    weights = np.array([1.0, 5.0, 1.0, 3.0, 1.0, 5.0, 1.0, 0.7])
    np.testing.assert_array_equal(max_min(problem, factor * weights, blind), max_min(problem, weights, blind))


def test_a_deadline_that_cannot_be_met_is_dropped() -> None:
    problem = AllocationProblem.of(np.array([[1.0], [2.0]]), [1, 1], [1])
    assert max_sum(problem, deadlines={0: 5.0})[1, 0] == pytest.approx(1.0)
    assert max_sum(problem, deadlines={0: 0.5})[0, 0] == pytest.approx(0.5)


def test_base_fairness_normalises_by_another_type_if_the_reference_cannot_run_a_job() -> None:
    problem = blind_speeds(AllocationProblem.of(np.array([[0.0, 3.0], [4.0, 1.0]]), [2, 1], [1, 2]), 0)
    np.testing.assert_array_equal(problem.alone, [[3.0, 3.0], [4.0, 4.0]])
    left = np.array([100.0, 100.0])
    x = finish_time_fair(problem, np.zeros(2), left, left / isolated_speed(problem))
    assert (x.sum(axis=1) > 0.5).all()


def test_allox_omits_jobs_that_no_free_type_can_run() -> None:
    problem = AllocationProblem.of(np.array([[1.0, 0.0], [2.0, 0.0], [1.0, 1.0]]), [1, 1, 1], [1, 1])
    x = allox(problem, np.zeros(3), np.array([100.0, 100.0, 100.0]), held={1: 0})
    np.testing.assert_array_equal(x, [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])


def test_allox_matches_a_gang_by_its_gpu_seconds_and_keeps_gpus_for_it() -> None:
    alone = np.ones((3, 1))
    gang, short, long = 2, 1, 1
    # 2 x 40 GPU-seconds are more than 50 and fewer than 90.
    problem = AllocationProblem.of(alone, [gang, short, long], [2])
    left = np.array([40.0, 50.0, 90.0])
    np.testing.assert_array_equal(allox(problem, np.zeros(3), left)[:, 0], [0, 1, 0])  # one GPU stays free
    np.testing.assert_array_equal(allox(problem, np.zeros(3), left, held={1: 0})[:, 0], [0, 1, 0])
    after = AllocationProblem.of(alone[:2], [gang, long], [2])
    np.testing.assert_array_equal(allox(after, np.zeros(2), left[[0, 2]])[:, 0], [1, 0])
    # A gang that runs takes two of the GPUs.
    wide = AllocationProblem.of(alone, [gang, short, long], [3])
    np.testing.assert_array_equal(allox(wide, np.zeros(3), left, held={0: 0})[:, 0], [1, 1, 0])


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_allox_finds_the_lowest_sum_of_completion_times(data: st.DataObject) -> None:
    jobs = data.draw(st.integers(1, 5))
    counts = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
    need = [[data.draw(st.sampled_from([1.0, 2.0, 5.0, 11.0, np.inf])) for _ in counts] for _ in range(jobs)]
    problem = AllocationProblem.of(1.0 / np.array(need), [1] * jobs, counts)
    x = allox(problem, np.zeros(jobs), np.ones(jobs))

    def total(kind_of: tuple[int, ...]) -> float:
        """Of a choice of type for every job, shortest first on each of its GPUs."""
        total = 0.0
        for kind, count in enumerate(counts):
            longest_first = sorted((need[j][k] for j, k in enumerate(kind_of) if k == kind), reverse=True)
            total += sum(n * (1 + row // count) for row, n in enumerate(longest_first))
        return total

    able = [[k for k in range(len(counts)) if need[j][k] < np.inf] or [-1] for j in range(jobs)]
    choices = list(itertools.product(*able))
    least = min(map(total, choices))
    started = [kind.argmax() if kind.any() else -1 for kind in x]

    def begins(kind_of: tuple[int, ...]) -> bool:
        """Whether the jobs that `x` starts may be the first on the GPUs of each type."""
        kept = all(kind in (-1, kind_of[j]) for j, kind in enumerate(started))
        return kept and all(started.count(k) == min(c, kind_of.count(k)) for k, c in enumerate(counts))

    assert any(begins(choice) for choice in choices if total(choice) == least)


def test_allox_with_many_jobs_and_gpus() -> None:
    ones = np.ones((1_000, 2))
    problem = AllocationProblem.of(ones, [1] * 1_000, [10_000, 3])
    x = allox(problem, np.zeros(1_000), ones[:, 0])
    assert x.sum() == 1_000  # with every position on every GPU, the costs take 80 GB


def test_a_job_whose_only_type_is_down_does_not_make_the_others_shares_unfair() -> None:
    alone = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
    problem = AllocationProblem.of(alone, [1, 1, 1], [0, 1])
    np.testing.assert_allclose(max_min(problem), [[0.0, 0.0], [0.0, 0.5], [0.0, 0.5]])
    x = finish_time_fair(problem, np.zeros(3), np.full(3, 10.0), np.array([np.inf, 20.0, 20.0]))
    np.testing.assert_allclose(x, [[0.0, 0.0], [0.0, 0.75], [0.0, 0.25]], rtol=1e-6)
    nobody = AllocationProblem.of(alone[:1], [1], [0, 1])
    assert not max_min(nobody).any()
    assert not finish_time_fair(nobody, np.zeros(1), np.ones(1), np.array([np.inf])).any()
