"""How work is distributed, with a stand-in for Ray (`benchmarks/campaign_on_ray.py` uses real Ray)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profiling.campaign.on_ray import run_on_ray
from profiling.errors import InputError, UnavailableError
from profiling.measure.request import RunRequest
from profiling.measure.settings import MeasureSettings
from profiling.ray_workers import MOST_DEATHS, RayWorkers
from tests.profiling.campaign.support import record_of, small_plan
from tests.ray_stand_in import Call, Cluster, ray

__all__ = ["ray"]


def squares() -> Callable[[int], int]:
    def square(task: int) -> int:
        if task < 0:
            raise InputError("negative", got=task)
        return task * task

    return square


def test_every_node_works_and_tasks_of_dead_ones_are_repeated(ray: Callable[..., Cluster]) -> None:
    cluster = ray(a=0, b=0, c=0)
    cluster.dying = {"b"}
    with RayWorkers[int, int]("auto", squares) as workers:
        assert sorted(workers.run(range(20))) == [(n, n * n) for n in range(20)]
        assert workers.given_up == []
    assert {node for node, _ in cluster.where} == {"a", "c"}


def test_one_worker_for_each_gpu(ray: Callable[..., Cluster]) -> None:
    ray(cpu_only=0, two=2)
    with RayWorkers[int, int]("auto", squares, on_gpus=True) as workers:
        assert len(list(workers.run(range(5)))) == 5
        assert sorted(workers._workers) == [("two", 0), ("two", 1)]


def test_a_task_that_kills_its_workers_is_abandoned(ray: Callable[..., Cluster]) -> None:
    cluster = ray(**{f"n{i}": 0 for i in range(MOST_DEATHS + 1)})
    deadly = 3
    alive = cluster.get

    def get(call: Call) -> Any:
        if call.task == deadly:
            cluster.dying.add(call.node)
        return alive(call)

    cluster.get = get  # type: ignore[method-assign]
    with RayWorkers[int, int]("auto", squares) as workers:
        assert sorted(task for task, _ in workers.run(range(6))) == [0, 1, 2, 4, 5]
        assert workers.given_up == [deadly]


def test_no_node_is_left(ray: Callable[..., Cluster]) -> None:
    cluster = ray(a=0)
    cluster.dying = {"a"}
    with (
        RayWorkers[int, int]("auto", squares, patience_s=0.3) as workers,
        pytest.raises(UnavailableError, match="same command again"),
    ):
        list(workers.run([1]))


def test_what_ray_prints_does_not_reach_stdout(
    ray: Callable[..., Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    ray(a=0)
    with RayWorkers[int, int]("auto", squares) as workers:
        print("(raylet) a node is gone")
        list(workers.run([1]))
    print("{}")
    captured = capsys.readouterr()
    assert captured.out == "{}\n"
    assert "a node is gone" in captured.err


def test_errors_of_tasks_and_of_the_connection(
    ray: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    ray(a=0)
    with RayWorkers[int, int]("auto", squares) as workers, pytest.raises(InputError, match="negative"):
        list(workers.run([1, -1]))
    with pytest.raises(UnavailableError, match="no Ray cluster responds"):
        RayWorkers("nowhere", squares)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnavailableError, match=r"cotenant\[ray\]"):
        RayWorkers("auto", squares)


def test_a_campaign_is_resumed_where_its_cluster_died(ray: Callable[..., Cluster], tmp_path: Path) -> None:
    plan = small_plan(6)

    def measure(request: RunRequest, settings: MeasureSettings) -> dict[str, Any]:
        return record_of(request, settings)

    cluster = ray(a=0, b=0)
    with pytest.raises(UnavailableError):
        run_on_ray(
            plan,
            tmp_path,
            "auto",
            measure=measure,
            on_done=lambda _run, now: cluster.dying.update("ab") if now.done == 4 else None,
            patience_s=0.3,
        )
    again = ray(a=0, b=0)
    final = run_on_ray(plan, tmp_path, "auto", measure=measure)
    assert (final.done, final.failed, len(again.where)) == (6, 0, 2)


def test_runs_that_are_repeated_count_as_not_done(tmp_path: Path, ray: Callable[..., Cluster]) -> None:
    plan, told = small_plan(3), list[int]()

    def failing(request: RunRequest, settings: MeasureSettings) -> dict[str, Any]:
        record = record_of(request, settings)
        record["members"][0]["outcome"] = "failed"
        return record

    ray(a=0)
    assert run_on_ray(plan, tmp_path, "auto", measure=failing).failed == 3
    ray(a=0)
    final = run_on_ray(
        plan,
        tmp_path,
        "auto",
        measure=record_of,
        retry_failed=True,
        on_done=lambda _run, now: told.append(now.done),
    )
    assert (final.failed, told) == (0, [1, 2, 3])
