"""A stand-in for Ray, whose nodes run tasks when waited for and may die.

`benchmarks/campaign_on_ray.py` uses real Ray.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


class Cluster(ModuleType):
    """Tasks run when they are waited for; a task on a node of `dying` takes the node down with it."""

    def __init__(self, nodes: dict[str, int]) -> None:
        super().__init__("ray")
        self.alive = dict.fromkeys(nodes, True)
        self.gpus, self.dying, self.where = nodes, set[str](), list[tuple[str, Any]]()
        self.exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def init(self, **options: Any) -> None:
        if options["address"] == "nowhere":
            raise ConnectionError("refused")

    def shutdown(self) -> None:
        self.alive = {}

    def kill(self, worker: Any) -> None:
        pass

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": name, "Alive": alive, "Resources": {"GPU": self.gpus[name]}}
            for name, alive in self.alive.items()
        ]

    def remote(self, kind: Any) -> Any:
        def options(scheduling_strategy: str, **_: Any) -> Any:
            def make(*arguments: Any) -> Any:
                worker = kind(*arguments)
                return SimpleNamespace(
                    do=SimpleNamespace(remote=lambda task: Call(scheduling_strategy, worker, task))
                )

            return SimpleNamespace(remote=make)

        return SimpleNamespace(options=options)

    def wait(self, calls: list[Call], timeout: float) -> tuple[list[Call], list[Call]]:
        return calls[-1:], calls[:-1]

    def get(self, call: Call) -> Any:
        if not self.alive[call.node] or call.node in self.dying:
            self.alive[call.node] = False
            raise RayError("the node died")
        self.where.append((call.node, call.task))
        return call.worker.do(call.task)


class Call:
    def __init__(self, node: str, worker: Any, task: Any) -> None:
        self.node, self.worker, self.task = node, worker, task


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Cluster]:
    def install(**nodes: int) -> Cluster:
        cluster, strategies = Cluster(nodes), ModuleType("ray.util.scheduling_strategies")
        strategies.NodeAffinitySchedulingStrategy = lambda node, soft: node  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "ray", cluster)
        monkeypatch.setitem(sys.modules, "ray.util", ModuleType("ray.util"))
        monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", strategies)
        return cluster

    return install
