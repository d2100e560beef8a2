"""Distributes tasks over the nodes of a Ray cluster, one worker per node.

A dead worker's task is given to another.

Ray is optional: `pip install 'cotenant[ray]'`, on every node and in the version of the cluster.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, redirect_stdout
from typing import Any, Generic, TypeVar

from profiling.errors import CotenantError, UnavailableError

Task = TypeVar("Task")
Result = TypeVar("Result")

# A task is not handed out again after its worker has died this often, because it may be the cause.
MOST_DEATHS = 3
# How long to wait for a node if there is none (left), and how often to look for new ones.
PATIENCE_S = 30.0
_LOOK_S = 2.0


class RayWorkers(Generic[Task, Result]):
    """Workers on a cluster, as a context that releases them.

    Args:
        address: of the cluster, like `10.0.0.1:6379`, `ray://...` or `auto`.
        make: called once on each worker; returns the function that runs a task there. Must be importable on
            the nodes.
        on_gpus: one worker per GPU of a node, which sees only that GPU, instead of one per node.
        patience_s: how long to wait for a node if there is none.

    Raises:
        UnavailableError: Ray is not installed, or no cluster answers.
    """

    def __init__(
        self,
        address: str,
        make: Callable[[], Callable[[Task], Result]],
        *,
        on_gpus: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.make, self.on_gpus, self.patience_s = make, on_gpus, patience_s
        self._streams = ExitStack()
        self._streams.enter_context(stdout_without_ray())
        try:
            self.ray = _connect(address)
        except CotenantError:
            self._streams.close()
            raise
        self.given_up: list[Task] = []
        self._workers: dict[tuple[str, int], Any] = {}
        self._looked = -_LOOK_S

    def __enter__(self) -> RayWorkers[Task, Result]:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers.values():
            self.ray.kill(worker)
        self.ray.shutdown()
        self._streams.close()

    def run(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Result]]:
        """Each task with its result, in order of completion.

        `tasks` are drawn one at a time, when a worker is free. Tasks that outlived `MOST_DEATHS` workers are
        in `given_up` afterwards.

        Raises:
            CotenantError: a task raised it.
            UnavailableError: no node is left, or none came.
        """
        source, again, deaths = iter(tasks), deque[Task](), Counter[int]()
        busy: dict[Any, tuple[tuple[str, int], Task]] = {}
        is_over, alone_since = False, time.monotonic()
        while True:
            self._look_for_nodes()
            idle = [key for key in self._workers if key not in {owner for owner, _ in busy.values()}]
            for key in idle:
                if again:
                    task = again.popleft()
                elif is_over:
                    break
                else:
                    try:
                        task = next(source)
                    except StopIteration:
                        is_over = True
                        break
                busy[self._workers[key].do.remote(task)] = (key, task)
            if not busy:
                if is_over and not again:
                    return
                if time.monotonic() - alone_since > self.patience_s:
                    raise UnavailableError(
                        "the Ray cluster has no node for the remaining work",
                        expected="a live node" + (" with a GPU" if self.on_gpus else ""),
                        hint="finished work is kept; run the same command again",
                    )
                time.sleep(0.2)
                continue
            alone_since = time.monotonic()
            ready, _ = self.ray.wait(list(busy), timeout=_LOOK_S)
            for reference in ready:
                key, task = busy.pop(reference)
                try:
                    result = self.ray.get(reference)
                except CotenantError as error:
                    # Ray's error has the task's class, too, but is not the original error.
                    raise getattr(error, "cause", error) from None
                except self.ray.exceptions.RayTaskError:
                    raise
                except self.ray.exceptions.RayError:
                    self._workers.pop(key, None)
                    deaths[id(task)] += 1
                    (again if deaths[id(task)] < MOST_DEATHS else self.given_up).append(task)
                else:
                    yield task, result

    def _look_for_nodes(self) -> None:
        """Start a worker wherever there is none."""
        if time.monotonic() - self._looked < _LOOK_S and self._workers:
            return
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._looked = time.monotonic()
        actor = self.ray.remote(_Worker)
        for node in self.ray.nodes():
            if not node["Alive"]:
                continue
            places = int(node["Resources"].get("GPU", 0)) if self.on_gpus else 1
            for number in range(places):
                key = (node["NodeID"], number)
                if key not in self._workers:
                    self._workers[key] = actor.options(
                        num_cpus=0 if self.on_gpus else 1,
                        num_gpus=1 if self.on_gpus else 0,
                        max_restarts=0,
                        scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
                    ).remote(self.make)


class _Worker:
    """Runs on a node."""

    def __init__(self, make: Callable[[], Callable[[Any], Any]]) -> None:
        self.carry_out = make()

    def do(self, task: Any) -> Any:
        return self.carry_out(task)


def stdout_without_ray() -> AbstractContextManager[Any]:
    """Redirect Ray's messages about dying nodes to stderr, because stdout may be one JSON value."""
    return redirect_stdout(sys.stderr)


def _connect(address: str) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UnavailableError(
            "Ray is not installed", expected="the package ray", hint="pip install 'cotenant[ray]'"
        ) from None
    try:
        ray.init(address=address, ignore_reinit_error=True, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        raise UnavailableError(
            "no Ray cluster responds",
            expected="an address like 10.0.0.1:6379 or auto",
            got=f"{address} ({error})",
        ) from None
    return ray
