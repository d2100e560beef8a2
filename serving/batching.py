"""Predictions of concurrent requests in one call: whatever came in since the event loop last looked goes together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from predictor.learning.feedback import corrected
from predictor.types import Prediction
from profiling.errors import UnavailableError
from profiling.workload import ColocationSet, Workload
from scheduling.core.snapshot import ClusterSnapshot
from serving.feedback import Belief, Feedback
from serving.metrics import Metrics
from serving.model_life import ModelLife, Serving

T = TypeVar("T")
_INLINE_SETS = 64


class Batcher:
    """Two lanes before one predictor.

    Sets whose jobs have all been seen by the serving model cost microseconds and run on the event loop, together with
    all others that arrived in the same turn. A job that is new must be captured and encoded, which takes seconds: it
    goes to a thread with a bounded queue.
    """

    def __init__(
        self, life: ModelLife, feedback: Feedback, metrics: Metrics, slow_calls: int, jobs: int
    ) -> None:
        self.life, self.feedback, self.metrics, self.slow_calls = life, feedback, metrics, slow_calls
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="cotenant-slow")
        self._waiting: list[tuple[ColocationSet, asyncio.Future[Prediction]]] = []
        self.jobs = jobs
        self._known: set[tuple[str, Workload]] = set()
        self._known_to: Serving | None = None
        self._renewal: asyncio.Task[Serving] | None = None
        self._slow = 0
        # Decisions run one after the other, away from the event loop: policies share one cache of predictions.
        self._placing = ThreadPoolExecutor(1, thread_name_prefix="cotenant-place")
        self._met: tuple[ClusterSnapshot, Serving, tuple[str, ...]] | None = None

    def belief(self) -> Belief:
        """The model that serves, with corrections. Raises `UnavailableError` while there is none."""
        return self.feedback.current(self.life.current())

    def known(self, serving: Serving, device: str, workloads: Sequence[Workload]) -> bool:
        """Whether the serving model has met all `workloads` on `device`."""
        return serving is self._known_to and all((device, w) in self._known for w in workloads)

    def remember(self, serving: Serving, device: str, workloads: Sequence[Workload]) -> None:
        """Note that `serving` has met `workloads`; it is replaced by a fresh copy once it has met too many.

        A predictor keeps what it worked out about every job, and a service runs for months.
        """
        if serving is not self._known_to:
            self._known_to = serving
            self._known.clear()
        self._known.update((device, w) for w in workloads)
        if len(self._known) > self.jobs and (self._renewal is None or self._renewal.done()):
            self._renewal = asyncio.get_running_loop().create_task(self.life.reload(force=True))

    async def slow(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run `function` in a thread. Raises `UnavailableError` where too many calls wait."""
        if self._slow >= self.slow_calls:
            self.metrics.refused.labels("slow_queue").inc()
            raise UnavailableError(
                "too many new workloads wait",
                expected=f"at most {self.slow_calls}",
                hint="try again in a second",
            )
        self._slow += 1
        self.metrics.slow_queue.inc()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)
        finally:
            self._slow -= 1
            self.metrics.slow_queue.dec()

    async def predict(self, asked: ColocationSet) -> Prediction:
        """Predict one set, with its neighbours in time; corrected by feedback."""
        belief = self.belief()
        serving = belief.serving
        if not self.known(serving, asked.device, asked.workloads):
            prediction = await self.slow(serving.predictor.predict, asked)
            self.remember(serving, asked.device, asked.workloads)
            return corrected(prediction, belief.corrections, asked.workloads)
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._flush)
        future: asyncio.Future[Prediction] = loop.create_future()
        self._waiting.append((asked, future))
        return await future

    async def predict_many(self, asked: list[ColocationSet]) -> list[Prediction]:
        """Predict many sets with one model; corrected by feedback."""
        belief = self.belief()
        predictions = await self.plain(belief.serving, asked)
        return [
            corrected(p, belief.corrections, s.workloads) for p, s in zip(predictions, asked, strict=True)
        ]

    async def plain(self, serving: Serving, asked: list[ColocationSet]) -> list[Prediction]:
        """What the model itself says, without feedback."""
        if len(asked) <= _INLINE_SETS and all(self.known(serving, s.device, s.workloads) for s in asked):
            return list(serving.predictor.predict_many(asked))
        predictions = list(await self.slow(serving.predictor.predict_many, asked))
        for one in asked:
            self.remember(serving, one.device, one.workloads)
        return predictions

    async def meet(
        self,
        serving: Serving,
        snapshot: ClusterSnapshot,
        job: Workload,
        admit: Callable[[set[Workload], set[str]], Awaitable[None]],
    ) -> None:
        """Make sure that the model has met `job` on every device type of `snapshot`, and all tenants on theirs.

        Args:
            admit: checks names before anything is encoded.
        """
        pairs: set[tuple[str, Workload]] = set()
        met = self._met
        if met is not None and met[0] is snapshot and met[1] is serving:
            devices = met[2]
        else:
            pairs = {(g.device, t.job) for _, g in snapshot.gpus() for t in g.tenants}
            devices = tuple(sorted({g.device for _, g in snapshot.gpus()}))
        pairs.update((device, job) for device in devices)
        new = [(d, w) for d, w in pairs if not self.known(serving, d, (w,))]
        if new:
            await admit({w for _, w in new}, {d for d, _ in new})
            await self.plain(serving, [ColocationSet(d, (w,)) for d, w in new])
        self._met = (snapshot, serving, devices)

    async def place(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a decision after those that came before it."""
        return await asyncio.get_running_loop().run_in_executor(self._placing, function, *arguments)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        try:
            belief = self.belief()
            answers: Sequence[Prediction] = belief.serving.predictor.predict_many([a for a, _ in waiting])
        except Exception:
            self._one_by_one(waiting)
            return
        for (asked, future), prediction in zip(waiting, answers, strict=True):
            if not future.done():
                future.set_result(corrected(prediction, belief.corrections, asked.workloads))

    def _one_by_one(self, waiting: list[tuple[ColocationSet, asyncio.Future[Prediction]]]) -> None:
        """One bad set must not fail its neighbours."""
        for asked, future in waiting:
            if future.done():
                continue
            try:
                belief = self.belief()
                prediction = belief.serving.predictor.predict(asked)
                future.set_result(corrected(prediction, belief.corrections, asked.workloads))
            except Exception as error:
                future.set_exception(error)

    def close(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._placing.shutdown(wait=False, cancel_futures=True)
