"""`Service`: what the routes work on. One per process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import structlog

from profiling.errors import CotenantError, InputError, UnavailableError
from profiling.graph import ComputationGraph
from profiling.workload import Workload
from scheduling.core.snapshot import ClusterSnapshot
from serving.answers import AnswerCache
from serving.auth import Authenticator
from serving.batching import Batcher
from serving.config import ServiceConfig
from serving.feedback import POLL_S, Belief, Feedback
from serving.limits import RateLimit
from serving.metrics import Metrics
from serving.model_life import ModelLife
from serving.model_source import ModelSource, model_source
from serving.store import Store
from serving.store.tables import ModelEventRow
from serving.tracing import tracer

T = TypeVar("T")
BUSY_S = 5.0  # how long a writer waits for another one
log = structlog.get_logger("cotenant.service")


class Service:
    """Store, model life, metrics and limits, with their start and stop."""

    def __init__(self, config: ServiceConfig, source: ModelSource | None = None) -> None:
        self.config = config
        self.metrics = Metrics()
        self.tracer = tracer()
        self.store = Store(config.database_url, BUSY_S)
        self.feedback = Feedback(self.store)
        self.life = ModelLife(
            source or model_source(config.model, config.tracking_uri),
            config.poll_s,
            self._model_event,
            self.graph_of,
            before_swap=self.feedback.prepare,
        )
        self.batcher = Batcher(self.life, self.feedback, self.metrics, config.slow_calls, config.model_jobs)
        self.authenticator = Authenticator(self.store)
        self.rate = RateLimit(config.rate_per_s, config.rate_burst)
        self.answers: AnswerCache[tuple[bytes, bool]] = AnswerCache()
        self.tokens_required = config.tokens_required
        self.draining = False
        self.in_flight = 0
        self.started_at = time.time()
        self.snapshot: tuple[ClusterSnapshot, int] | None = None  # parsed cluster state, see handlers.cluster
        self.graphs: dict[str, ComputationGraph] = {}  # registered graphs that this process has loaded
        self._store_pool = ThreadPoolExecutor(8, thread_name_prefix="cotenant-store")

    async def start(self, upkeep: Callable[[Service], int]) -> None:
        """Load the model and start the background tasks; `upkeep` is called in every process now and then."""
        self.life.start()
        self._maintenance = asyncio.create_task(self._maintain(upkeep))
        self._learning = asyncio.create_task(self._learn())
        log.info("service starts", model=self.config.model, auth="on" if self.tokens_required else "off")

    async def stop(self) -> None:
        self.draining = True
        self._maintenance.cancel()
        self._learning.cancel()
        await self.life.stop()
        self.batcher.close()
        self._store_pool.shutdown(wait=True)
        self.store.close()
        self.metrics.close()
        log.info("service stopped")

    async def stored(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Run a function that uses the store in a thread, so that a slow disk does not stop the others."""
        return await asyncio.get_running_loop().run_in_executor(
            self._store_pool, partial(function, *arguments, **named)
        )

    async def _maintain(self, upkeep: Callable[[Service], int]) -> None:
        while True:
            try:
                await self.stored(upkeep, self)
            except CotenantError as error:
                log.warning("upkeep failed", error=error.message)
            await asyncio.sleep(min(self.config.reservation_s / 4, 15.0))

    async def _learn(self) -> None:
        """Take in what other processes were told."""
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self.stored(self.feedback.refresh)
            except CotenantError as error:
                log.warning("observations not read", error=error.message)

    def belief(self) -> Belief:
        """The model that serves, with corrections. Raises `UnavailableError` while there is none."""
        return self.batcher.belief()

    async def check_ready(self) -> None:
        """Raises `UnavailableError` where the service should get no requests."""
        if self.draining:
            raise UnavailableError("the service is stopping")
        self.life.current()
        await self.stored(self.store.ping)

    def graph_of(self, workload: Workload) -> ComputationGraph:
        """The graph of a job: a registered one, or a zoo model's, captured.

        Raises:
            InputError: a registered graph was captured for another batch size.
        """
        graph = self.graphs.get(workload.model)
        if graph is None:
            from profiling.capture import graph_for

            return graph_for(workload)
        if workload.batch_size not in (None, graph.batch_size):
            raise InputError(
                f"{workload.model} was captured for another batch size",
                expected=f"batch_size={graph.batch_size}, or none",
                got=workload.batch_size,
                hint="register the model again with that batch size",
            )
        return graph

    def _model_event(self, version: str, event: str, detail: str) -> None:
        self.metrics.reloads.labels(event).inc()
        if event == "loaded":
            self.metrics.serve_version(version)
        try:
            with self.store.write() as session:
                session.add(ModelEventRow(version=version[:200], event=event, detail=detail, at=time.time()))
        except CotenantError as error:
            log.warning("model event not recorded", error=error.message)
