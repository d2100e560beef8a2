"""Life cycle of the served predictor.

A new version is loaded beside the old one, verified and swapped in; on failure the old one stays.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog

from predictor.types import Prediction
from profiling.errors import UnavailableError
from profiling.workload import ColocationSet, Workload
from serving import collector
from serving.model_source import GraphSource, ModelSource

log = structlog.get_logger("cotenant.model")

#: Every model must answer these before it may serve.
GOLDEN = (
    ColocationSet("v100", (Workload("resnet18-cifar", batch_size=64),)),
    ColocationSet(
        "v100", (Workload("resnet18-cifar", batch_size=64), Workload("lstm-wikitext2", batch_size=20))
    ),
    ColocationSet("p100", (Workload("lstm-wikitext2", batch_size=20),)),
)


@dataclass(frozen=True, slots=True)
class Serving:
    """The predictor in use. Requests keep the one that they started with."""

    predictor: Any
    version: str
    tag: str
    since: float


Listener = Callable[[str, str, str], None]  # version or tag, event (loaded, refused, failed), detail


class ModelLife:
    """Follows `source`; `serving` is swapped in one assignment.

    Args:
        source: where models come from.
        poll_s: seconds between checks.
        on_event: called for every event, from the loading thread.
        graphs: returns the graph of a workload to a model.
        before_swap: called with a model that is about to serve, from the loading thread.
    """

    def __init__(
        self,
        source: ModelSource,
        poll_s: float,
        on_event: Listener,
        graphs: GraphSource,
        before_swap: Callable[[Serving], None] = lambda _: None,
    ) -> None:
        self.before_swap = before_swap
        self.graphs = graphs
        self.source, self.poll_s, self.on_event = source, poll_s, on_event
        self.serving: Serving | None = None
        self.last_error: str | None = None
        self._failed_tag: str | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="cotenant-model")
        self._task: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()

    def current(self) -> Serving:
        """The current predictor. Raises `UnavailableError` while there is none."""
        if self.serving is None:
            raise UnavailableError(
                "no model loaded yet", got=self.last_error or "still loading", hint="see /v1/health/ready"
            )
        return self.serving

    def start(self) -> None:
        """Load in the background and keep polling; needs a running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def tried(self, most_s: float) -> None:
        """Wait at most `most_s` for the first load to succeed or fail."""
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await self._tried.wait()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def reload(self, force: bool = True) -> Serving:
        """Check now. With `force`, an unchanged or previously rejected model is loaded again."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.refresh, force)

    async def _follow(self) -> None:
        while True:
            try:
                await self.reload(force=False)
            except Exception as error:
                log.warning("model not loaded", error=str(error))
            self._tried.set()
            await asyncio.sleep(self.poll_s if self.serving else min(self.poll_s, 2.0))

    def refresh(self, force: bool = False) -> Serving:
        """Check the source, and load, verify and swap if there is a new model.

        Raises:
            UnavailableError: no model serves and none could be loaded; or, with `force`, the new one was
                rejected.
        """
        with self._lock:
            tag = "?"
            try:
                tag = self.source.tag()
                if not force and self.serving is not None and tag == self.serving.tag:
                    # The source answers again, or a rejected model was withdrawn.
                    self.last_error, self._failed_tag, self._failures = None, None, 0
                    return self.serving
                waits = not force and tag == self._failed_tag and time.monotonic() < self._retry_at
                if not waits:
                    predictor = self.source.load(tag, self.graphs)
                    verify(predictor)
                    new = Serving(predictor, str(predictor.version), tag, time.time())
                    self.before_swap(new)
            except Exception as error:
                return self._keep(tag, error, force)
            if waits:  # outside the try, because waiting is not another failure
                return self.current()
            self.serving, self.last_error, self._failed_tag, self._failures = new, None, None, 0
            log.info("model serves", version=new.version, tag=tag)
            self.on_event(new.version, "loaded", tag)
            collector.settle()  # including the previous model's leftovers
            return new

    def _keep(self, tag: str, error: Exception, force: bool) -> Serving:
        self.last_error = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        self._failures = self._failures + 1 if tag == self._failed_tag else 1
        self._failed_tag = tag
        self._retry_at = time.monotonic() + min(self.poll_s * 2**self._failures, 600.0)
        self.on_event(tag, "refused" if isinstance(error, RefusedError) else "failed", self.last_error)
        if force or self.serving is None:
            raise UnavailableError("the model could not be loaded", got=self.last_error) from error
        log.warning("new model rejected, the old one stays", tag=tag, error=self.last_error)
        return self.serving


class RefusedError(Exception):
    """A model loads but gives implausible answers."""


def verify(predictor: Any) -> None:
    """Predict `GOLDEN` with `predictor`.

    Raises:
        RefusedError: a number is missing, infinite, out of its range, or outside its own interval.
    """
    for asked, prediction in zip(GOLDEN, predictor.predict_many(list(GOLDEN)), strict=True):
        _check(asked, prediction)


def _check(asked: ColocationSet, prediction: Prediction) -> None:
    where = f"{asked.device}: {', '.join(map(str, asked.workloads))}"
    if len(prediction.members) != len(asked.workloads):
        raise RefusedError(f"{where}: {len(prediction.members)} members returned")
    for member in prediction.members:
        for name, least in (
            ("step_time_s", 0.0),
            ("solo_step_time_s", 0.0),
            ("slowdown", 1.0),
            ("memory_bytes", 0.0),
        ):
            q = getattr(member, name)
            if not all(map(math.isfinite, (q.lower, q.value, q.upper))) or q.value < least * (1 - 1e-6):
                raise RefusedError(f"{where}: {name} is {q.value} in [{q.lower}, {q.upper}]")
            if not q.lower * (1 - 1e-6) <= q.value <= q.upper * (1 + 1e-6):
                raise RefusedError(f"{where}: {name} {q.value} lies outside [{q.lower}, {q.upper}]")
