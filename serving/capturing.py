"""Captures graphs of zoo models in processes that can be killed.

That happens at a time limit, at a memory limit, or when nobody waits any more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, TypeVar

from cachetools import LRUCache

from profiling.errors import CotenantError, LimitError, UnavailableError
from profiling.graph import ComputationGraph
from profiling.workload import Workload
from serving.lanes import Call, current_call
from serving.metrics import Metrics

T = TypeVar("T")
_KEPT = 8192
_LOOK_S = 0.05
_START_S = 60.0  # the first process takes seconds to import
_NICE = 3  # a capture gets a third of a core shared with the event loop


def limit_memory(more_bytes: int) -> None:
    """Let this process map `more_bytes` more, at a lower priority than the serving one.

    Called before its first capture.

    The libraries' objects are frozen (`gc.freeze`), because collecting them would take longer than most
    captures.
    """
    import gc
    import os
    import resource

    import profiling.capture  # memory that every capture needs does not count as a capture's own

    del profiling
    with open("/proc/self/statm", encoding="ascii") as file:
        mapped = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (mapped + more_bytes, mapped + more_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(_NICE)
    gc.freeze()


def capture(workload: Workload) -> ComputationGraph:
    """Runs in a capture process."""
    from profiling.capture import graph_for

    return graph_for(workload)


def timed(function: Callable[[Workload], T], workload: Workload) -> tuple[T, float]:
    """The result of `function(workload)`, and the processor time it took."""
    started = time.process_time()
    return function(workload), time.process_time() - started


class Captures:
    """Graphs by workload; the last few thousand are kept in memory.

    Args:
        processes: number of concurrent captures.
        seconds, memory_bytes: limits of one capture.
    """

    def __init__(self, metrics: Metrics, processes: int, seconds: float, memory_bytes: int) -> None:
        self.metrics = metrics
        self.processes, self.seconds, self.memory_bytes = processes, seconds, memory_bytes
        self._graphs: LRUCache[Workload, ComputationGraph] = LRUCache(_KEPT)
        self._pending: dict[Workload, Any] = {}
        self._pool: Any = None
        self._warming: Any = None  # set by `warm`: the latest first capture
        self._lock = threading.Lock()

    def graph(self, workload: Workload) -> ComputationGraph:
        """The graph of a zoo model with its options; waits for its capture.

        Raises:
            LimitError: the capture takes too long or too much memory. UnavailableError: the caller left, or the service ends.
            CotenantError: as `profiling.capture.graph_for`.
        """
        call = current_call()
        with self._lock:
            graph = self._graphs.get(workload)
            if graph is not None:
                return graph
        if call is None:  # not in a request: a model is being loaded
            return self._keep(workload, capture(workload))
        with self._lock:
            pending = self._pending.get(workload)
            if pending is None:
                pending = self._pending[workload] = _Pending(self._schedule(workload))
            pending.waiters += 1
        try:
            graph = self._wait(workload, pending, call)
        except BaseException as error:
            self.metrics.captures.labels("failed" if isinstance(error, CotenantError) else "ended").inc()
            raise
        finally:
            with self._lock:
                pending.waiters -= 1
                if not pending.waiters:
                    # If it still runs, nobody waits for it, and this kills the process.
                    if pending.future.cancel() and self._warming is not None:
                        self._warm_up()
                    if self._pending.get(workload) is pending:
                        del self._pending[workload]
        self.metrics.captures.labels("captured").inc()
        return self._keep(workload, graph)

    def _keep(self, workload: Workload, graph: ComputationGraph) -> ComputationGraph:
        with self._lock:
            self._graphs[workload] = graph
        return graph

    def warm(self) -> None:
        """Start the processes now and whenever one was killed, so that no capture waits for imports."""
        with self._lock:
            self._warm_up()

    @property
    def are_warm(self) -> bool:
        """Whether the first capture has ended, well or not."""
        return self._warming is not None and bool(self._warming.done())

    def _warm_up(self) -> None:
        self._start()
        if self._warming is None or self._warming.done():
            self._warming = self._pool.schedule(capture_first, timeout=self.seconds)

    def close(self) -> None:
        """Kill the processes, whatever they are doing."""
        with self._lock:
            self._warming = None
            if self._pool is not None:
                self._pool.stop()
                self._pool.join(timeout=5)
                self._pool = None

    def _start(self) -> None:
        if self._pool is None or not self._pool.active:
            import multiprocessing

            from pebble import ProcessPool

            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["serving.capturing", "profiling.capture", "torch._dynamo"])
            self._pool = ProcessPool(
                self.processes,
                max_tasks=256,
                initializer=limit_memory,
                initargs=(self.memory_bytes,),
                context=context,
            )

    def _schedule(self, workload: Workload) -> Any:
        self._start()
        return self._pool.schedule(timed, args=(capture, workload), timeout=self.seconds)

    def _wait(self, workload: Workload, pending: _Pending, call: Call) -> ComputationGraph:
        from pebble import ProcessExpired

        future = pending.future
        until = time.monotonic() + _START_S + 4 * self.seconds  # queued and running
        while True:
            try:
                graph: ComputationGraph
                graph, seconds = future.result(_LOOK_S)
                call.elsewhere_s += seconds
                return graph
            except FutureTimeoutError as error:
                if future.done() and isinstance(future.exception(), FutureTimeoutError):
                    raise LimitError(
                        "the capture takes too long", expected=f"at most {self.seconds:g} s"
                    ) from error
                if call.cancelled.is_set() or time.monotonic() > until:
                    raise UnavailableError("the capture was cancelled") from None
            except CancelledError:
                raise UnavailableError("the capture was cancelled", hint="try again") from None
            except BrokenProcessPool:
                # A process that dies while idle takes down pebble's whole pool; the capture restarts in the
                # next pool.
                if time.monotonic() > until:
                    raise UnavailableError("the capture workers keep crashing") from None
                with self._lock:
                    if pending.future is future:
                        pending.future = self._schedule(workload)
                    future = pending.future
            except MemoryError:
                raise LimitError(
                    "the capture used too much memory", expected=f"at most {self.memory_bytes} bytes"
                ) from None
            except ProcessExpired as error:
                raise LimitError(
                    "the capture worker died",
                    expected="a capture within its limits",
                    got=f"exit code {error.exitcode}",
                ) from None


@dataclass(slots=True)
class _Pending:
    """A capture and the number of calls waiting for it."""

    future: Any
    waiters: int = 0


def capture_first() -> None:
    """The first capture of a process, made before any request needs it.

    Torch imports shape rules on first use, which takes ten times as long as a capture.
    """
    from profiling.capture.source import capture_zoo

    capture_zoo(Workload("resnet18-cifar"))
