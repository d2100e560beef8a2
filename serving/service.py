"""`Service`: the state shared by the routes. One per process."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import structlog

from profiling.capture.precision import for_job
from profiling.errors import CotenantError, UnavailableError, UnknownNameError
from profiling.graph import ComputationGraph
from profiling.workload import REGISTERED, Workload
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.placement.by_policy import PolicyPlacer
from scheduling.placement.place import Placer
from scheduling.policies import get_policy
from serving import collector
from serving.answers import AnswerCache
from serving.auth import Authenticator
from serving.batching import Batcher
from serving.capturing import Captures
from serving.cluster_state import ClusterReader
from serving.config import ServiceConfig
from serving.delay import DelayLimit
from serving.feedback import POLL_S, Belief, Feedback, MakePlacer
from serving.hosts import Hosts, Proxies
from serving.lanes import Lane
from serving.limits import RateLimit, Slots
from serving.listener import Listener
from serving.metrics import Metrics
from serving.model_life import ModelLife
from serving.model_source import ModelSource, model_source
from serving.store import Store
from serving.store.graphs import read_graphs
from serving.store.tables import ModelEventRow
from serving.tracing import tracer

T = TypeVar("T")
_FIRST_LOAD_S = 120.0
_LOOK_S = 1.0  # period of lane checks
_STOPPED_S = 5.0  # a check later than this means that the process was paused
_PING_S = 0.8  # readiness must answer within a second, whatever the store does
_WARM_S, _WARM_LOOK_S = 30.0, 0.05  # longest wait of readiness for the first capture
BUSY_S = 5.0  # how long a writer waits for another
_LEARNING_S = 600.0  # longest call that learns all observations anew
log = structlog.get_logger("cotenant.service")


@dataclass(slots=True)
class InferenceCounts:
    """Request statistics of the Open Inference Protocol since the process started."""

    requests: int = 0
    sets: int = 0
    failures: int = 0
    seconds: float = 0.0


class Service:
    """Store, served model, metrics and limits, with their start and stop."""

    def __init__(self, config: ServiceConfig, source: ModelSource | None = None) -> None:
        self.config = config
        self.metrics = Metrics()
        self.tracer = tracer()
        self.store = Store(config.database_url, BUSY_S)
        self.feedback = Feedback(self.store, _placer(config.policy), self.load_graphs)
        self.life = ModelLife(
            source or model_source(config.model, config.tracking_uri),
            config.poll_s,
            self._model_event,
            self.graph_of,
            before_swap=self.feedback.prepare,
        )
        self.delay = DelayLimit(config.queue_delay_s)
        self.batcher = Batcher(self.life, self.feedback, self.metrics, config, self.delay)
        self.captures = Captures(
            self.metrics, config.capture_processes, config.capture_s, config.capture_memory_bytes
        )
        self.hosts = Hosts(config.host, config.on_loopback, config.allowed_hosts)
        self.proxies = Proxies(config.trusted_proxies)
        self.listener = Listener(config, self.metrics, self.delay)
        self.authenticator = Authenticator(self.store, config.token_grace_s)
        self.rate = RateLimit(config.rate_per_s, config.rate_burst)
        self.answers: AnswerCache[tuple[bytes, bool]] = AnswerCache()
        self.tokens_required = config.tokens_required
        self.draining = False
        self.slots = Slots(config.requests_in_flight)
        self.open_slots = Slots(config.open_in_flight)
        self.buffered_bytes = 0  # request bodies in memory
        self.oip = InferenceCounts()
        self.warm_captures = False
        self._warming: asyncio.Task[None] | None = None
        self._last_event: tuple[str, str] | None = None
        self.cluster = ClusterReader(self.store)
        self.graphs: dict[str, ComputationGraph] = {}  # registered graphs loaded in this process
        self.graph_changes = 0
        self.damaged_graphs: dict[str, UnknownNameError] = {}  # registered, but cannot be read
        # Last results of handlers.jobs.without_unknown and without_unpredictable.
        self.pruned: tuple[ClusterSnapshot, ClusterSnapshot, int] | None = None
        self.predictable: tuple[ClusterSnapshot, ClusterSnapshot, int] | None = None
        store_bounds: dict[str, Any] = {
            "length": 8 * config.queue_length,
            "wait_s": BUSY_S,
            "stuck_s": 4 * BUSY_S,
        }
        self._writing = Lane("store", self.metrics, threads=8, **store_bounds)
        self._checking = Lane("store_tokens", self.metrics, threads=2, **store_bounds)
        self._reading = Lane("store_reads", self.metrics, threads=8, **store_bounds)
        self._rendering = Lane("metrics", self.metrics, **store_bounds)
        self._learner = Lane("learning", self.metrics, stuck_s=_LEARNING_S)
        self._own_lanes = (
            self._writing, self._reading, self._checking, self._rendering, self._learner
        )  # fmt: skip
        self._lanes = (*self.batcher.lanes, *self._own_lanes)

    async def start(self, upkeep: Callable[[Service], None], refresh: Callable[[Service], None]) -> None:
        """Load the model and start the background tasks.

        Args:
            upkeep: called periodically in every process.
            refresh: called every second to pick up changes by other processes.
        """
        self.life.start()
        self._tasks = [
            asyncio.create_task(self._maintain(upkeep)),
            asyncio.create_task(self._poll(self._learner.run, self.feedback.refresh)),
            asyncio.create_task(self._poll(self.read, refresh, self)),
            asyncio.create_task(self._guard_lanes()),
        ]
        # When processes share a socket, one that cannot answer yet must not accept.
        await self.life.tried(_FIRST_LOAD_S)
        if self.warm_captures:
            self._warming = asyncio.create_task(self._warm_up())
        log.info("service starts", model=self.config.model, auth="on" if self.tokens_required else "off")
        if self.tokens_required:
            await self._warn_without_tokens()

    async def _warm_up(self) -> None:
        """Make the first capture, which takes seconds, once a model serves; waits at most `_WARM_S` for it."""
        while self.life.serving is None:
            await asyncio.sleep(_LOOK_S)
        until = time.monotonic() + _WARM_S
        await asyncio.to_thread(self.captures.warm)
        while not self.captures.are_warm and time.monotonic() < until:
            await asyncio.sleep(_WARM_LOOK_S)

    async def _warn_without_tokens(self) -> None:
        with suppress(TimeoutError, UnavailableError):
            async with asyncio.timeout(self.config.token_check_s):
                if not await self.check_token(self.authenticator.anybody):
                    log.warning(
                        "nobody can call the service yet: there is no token",
                        hint="cotenant serve token add NAME --scope SCOPE --database URL",
                    )

    async def stop(self) -> None:
        self.draining = True
        for task in (*self._tasks, self._warming):
            if task is not None:
                task.cancel()
        await self.life.stop()
        self.batcher.close()
        self.captures.close()
        self.listener.close()
        for lane in self._own_lanes:
            lane.close()
        self.store.close()
        self.metrics.close()
        log.info("service stopped")

    async def stored(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Run a function that writes to the store in a thread.

        A slow disk then does not block other requests.
        """
        return await self._writing.run(partial(function, *arguments, **named))

    async def read(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Run a function that only reads the store, without waiting for writers."""
        return await self._reading.run(partial(function, *arguments, **named))

    async def check_token(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a token lookup in dedicated threads."""
        return await self._checking.run(function, *arguments)

    async def render_metrics(self) -> bytes:
        """The metrics as Prometheus reads them, made in a thread of their own: that takes milliseconds."""
        return await self._rendering.run(self.metrics.render)

    def stuck_lanes(self) -> list[str]:
        """Lanes with a call over its time limit."""
        return [lane.name for lane in self._lanes if lane.stuck_for() > 0]

    async def _guard_lanes(self) -> None:
        """Exit when a lane stays stuck, because a thread cannot be killed.

        The supervisor restarts the process.

        Time during which the process itself was paused, e.g. with its machine, does not count.
        """
        while True:
            slept = time.monotonic()
            await asyncio.sleep(_LOOK_S)
            stopped_s = time.monotonic() - slept - _LOOK_S
            if stopped_s > _STOPPED_S:
                for lane in self._lanes:
                    lane.forgive(stopped_s)
            for lane in self._lanes:
                if lane.stuck_for() > lane.stuck_s:
                    log.error("lane stuck, exiting", lane=lane.name)
                    os._exit(70)

    async def _maintain(self, upkeep: Callable[[Service], None]) -> None:
        while True:
            try:
                await self.stored(upkeep, self)
            except CotenantError as error:
                log.warning("upkeep failed", error=error.message)
            except Exception:  # must not end it for good
                log.exception("upkeep failed")
            collector.settle_now_and_then(
                idle=not self.slots.taken and all(lane.idle for lane in self._lanes)
            )
            await asyncio.sleep(min(self.config.reservation_s / 4, 15.0))

    async def _poll(self, run: Callable[..., Awaitable[None]], *call: Any) -> None:
        """Pick up changes made by other processes."""
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await run(*call)
            except CotenantError as error:
                log.warning("cannot read the store", error=error.message)
            except Exception:  # must not end it for good
                log.exception("cannot read the store")

    def belief(self) -> Belief:
        """The serving model with its corrections. Raises `UnavailableError` while there is none."""
        return self.batcher.belief()

    async def check_ready(self) -> None:
        """Raise `UnavailableError` if the service should not receive requests."""
        if self.draining:
            raise UnavailableError("the service is stopping")
        stuck = self.stuck_lanes()
        if stuck:
            raise UnavailableError(
                "a lane is stuck",
                got=", ".join(stuck),
                hint="the process exits and is restarted if this persists",
            )
        self.life.current()
        if self._warming is not None and not self._warming.done():
            raise UnavailableError(
                "the capture processes are starting", hint="new workloads would wait for them"
            )
        try:
            async with asyncio.timeout(_PING_S):
                await self.read(self.store.ping)
        except TimeoutError:
            raise UnavailableError(
                "the store does not respond", expected=f"an answer within {_PING_S} s"
            ) from None

    def graph_of(self, workload: Workload) -> ComputationGraph:
        """The graph of a job: registered, or captured from a zoo model.

        Raises:
            InputError: a registered graph was captured with other options.
        """
        graph = self.graphs.get(workload.model)
        if graph is None:
            return self.captures.graph(workload)
        return for_job(graph, workload)

    def load_graphs(self, models: set[str]) -> set[str]:
        """Load the stored graphs of registered workloads into this process, where they are missing.

        Returns:
            the models that are not registered, or whose graphs are in `damaged_graphs`.
        """
        missing = models - self.graphs.keys()
        if not missing:
            return missing
        found = read_graphs(self.store, {name.removeprefix(REGISTERED) for name in missing})
        for name in missing:
            graph = found.get(name.removeprefix(REGISTERED))
            if isinstance(graph, ComputationGraph):
                self.make_known(name, graph)
            elif graph is None:
                self.damaged_graphs.pop(name, None)
            elif name not in self.damaged_graphs:
                self.damaged_graphs[name] = graph
                log.warning("stored graph ignored", workload=name, error=graph.message)
        return missing - self.graphs.keys()

    def make_known(self, model: str, graph: ComputationGraph) -> None:
        """Register a stored graph in this process under the name that it is stored by."""
        self.graphs[model] = graph
        self.damaged_graphs.pop(model, None)
        self.graph_changes += 1

    def _model_event(self, version: str, event: str, detail: str) -> None:
        self.metrics.reloads.labels(event).inc()
        if event == "loaded":
            self.metrics.serve_version(version)
        if event != "loaded" and self._last_event == (
            version,
            event,
        ):  # a registry that is down fails at every poll
            return
        try:
            with self.store.write() as session:
                at = self.store.now(session)
                session.add(ModelEventRow(version=version[:200], event=event, detail=detail, at=at))
            self._last_event = version, event
        except CotenantError as error:
            self._last_event = None
            log.warning("model event not recorded", error=error.message)


def _placer(policy: str | None) -> MakePlacer:
    return Placer if policy is None else partial(PolicyPlacer, policy=get_policy(policy))
