"""Decides on the stored cluster and reserves the GPU.

All waiting requests share one read and one transaction.

A decision is written only if its GPU has gained no tenant since it was ranked; otherwise it is made again.
Changes of other GPUs or of iterations left, and departures, do not matter. Processes take turns, so retries
are rare.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from profiling.errors import ConflictError, CotenantError
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.placement.decision import PlacementDecision
from scheduling.placement.place import Placer
from scheduling.placement.ranking import PlacementConfig
from serving.cluster_state import ClusterState
from serving.handlers.idempotency import replay
from serving.handlers.keeping import Answer, Asked, keep
from serving.handlers.place import counted, prepare, with_tenant
from serving.http import Once
from serving.lanes import CALLER, FairQueue, OverloadError
from serving.schemas import PlacementBody, job_of
from serving.service import Service

_TRIES = 40
_TOGETHER, _TOGETHER_S = 32, 0.05  # most decisions in one transaction, and longest time to make them
_TURN_S = 0.25  # do not wait longer than this for another process's turn


@dataclass(slots=True, eq=False)
class Request:
    """A request waiting for its decision."""

    asked: Asked
    config: PlacementConfig
    caller: str
    answer: asyncio.Future[Answer]
    tries: int = 0

    def fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


Decided = tuple[Request, PlacementDecision]


class Reserver:
    """Decides for one service; callers take turns, and their number is bounded as in a lane."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._waiting: FairQueue[Request] = FairQueue()
        self._task: asyncio.Task[None] | None = None

    async def reserve(self, body: PlacementBody, once: Once | None) -> Answer:
        """Choose a GPU of the stored cluster and reserve it. Returns status and entry.

        Raises:
            ConflictError: the cluster kept changing.
            InfeasibleError: the job fits on no GPU of the cluster.
            OverloadError: too many requests wait.
        """
        service, job = self.service, job_of(body.job)
        config = PlacementConfig(objective=body.objective, max_slowdown=body.max_slowdown)
        if once is not None:
            given = await service.read(_replayed, service, once)
            if given is not None:
                return given
        state = service.cluster.latest
        if state is None:
            state = await service.read(service.cluster.current)
        # Encode new workloads before other requests have to wait.
        await prepare(service, service.belief(), job, state.snapshot)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        request = Request(Asked(uuid.uuid4().hex, body, job, once), config, CALLER.get(), answer)
        self._enqueue(request)
        late = asyncio.get_running_loop().call_later(
            service.config.queue_wait_s, self._refuse, request, "wait"
        )
        try:
            return await answer
        finally:
            late.cancel()
            self._waiting.remove(request.caller, request)

    def _enqueue(self, request: Request) -> None:
        if len(self._waiting) >= self.service.config.queue_length:
            other = self._waiting.to_refuse(request.caller)
            self._refuse(other or request, "length")
            if other is None:
                return
        self._waiting.push(request.caller, request)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())

    def _refuse(self, request: Request, why: str) -> None:
        """Refuse a waiting request; one that is being decided will be answered soon."""
        if self._waiting.remove(request.caller, request) or why == "length":
            self.service.metrics.refused.labels(f"reserving_{why}").inc()
            request.fail(OverloadError("too many placements are queued", hint="try again in a second"))

    async def _work(self) -> None:
        CALLER.set("placements")
        while self._waiting:
            group = [self._waiting.pop() for _ in range(min(_TOGETHER, len(self._waiting)))]
            try:
                await self._decide(group)
            except Exception as error:
                for request in group:
                    request.fail(error)

    async def _decide(self, group: list[Request]) -> None:
        service = self.service
        state, leave = await service.read(_begin, service)
        try:
            decided = await self._choose(group, state)
            made = [(request.asked, decision) for request, decision in decided]
            answers = await service.stored(_keep, service, made, state, leave)
            leave = None
        finally:
            if leave is not None:
                try:
                    await service.read(leave)
                except OverloadError:  # the turn must end all the same
                    await asyncio.to_thread(leave)
        for (request, _), answer in zip(decided, answers, strict=True):
            if isinstance(answer, CotenantError):
                request.fail(answer)
            elif answer is not None:
                if not request.answer.done():
                    request.answer.set_result(answer)
            elif request.tries < _TRIES:
                request.tries += 1
                self._waiting.push_first(request.caller, request)
            else:
                request.fail(ConflictError("the cluster kept changing during the decision", hint="try again"))

    async def _choose(self, group: list[Request], state: ClusterState) -> list[Decided]:
        """Decide one at a time, each seeing the earlier ones; what is not reached in time waits for the next batch."""
        service, snapshot = self.service, state.snapshot
        belief, waiting = service.belief(), list[Request]()
        for request in group:
            try:
                if not request.answer.done():
                    snapshot = await prepare(service, belief, request.asked.job, state.snapshot)
                    waiting.append(request)
            except CotenantError as error:
                request.fail(error)
        outcomes = await service.batcher.placing.run(
            _decisions, belief.placer, waiting, snapshot, state.place_of
        )
        for later in reversed(waiting[len(outcomes) :]):
            self._waiting.push_first(later.caller, later)
        decided: list[Decided] = []
        for request, (outcome, took_s) in zip(waiting, outcomes, strict=False):
            try:
                decided.append((request, counted(service, outcome, took_s)))
            except CotenantError as error:
                request.fail(error)
        return decided


def _replayed(service: Service, once: Once) -> Answer | None:
    with service.store.read() as session:
        return replay(session, once)


def _begin(service: Service) -> tuple[ClusterState, Callable[[], None] | None]:
    """The state to decide on, and a function that ends this process's turn."""
    leave = service.store.take_turn(_TURN_S)
    try:
        return service.cluster.current(), leave
    except BaseException:
        if leave is not None:
            leave()
        raise


def _decisions(
    placer: Placer, requests: Sequence[Request], snapshot: ClusterSnapshot, place_of: dict[str, int]
) -> list[tuple[PlacementDecision | CotenantError, float]]:
    """The decision or error for each, with the seconds it took; only the first ones if time runs out."""
    outcomes: list[tuple[PlacementDecision | CotenantError, float]] = []
    began = time.perf_counter()
    for request in requests:
        started = time.perf_counter()
        if outcomes and started - began > _TOGETHER_S:
            break
        asked = request.asked
        try:
            outcome = placer.place(asked.job, asked.body.iterations, snapshot, request.config)
        except CotenantError as error:
            outcomes.append((error, time.perf_counter() - started))
            continue
        outcomes.append((outcome, time.perf_counter() - started))
        if outcome.decision == "place":
            top = outcome.ranked[0]
            tenant = asked.tenant(outcome)
            snapshot = with_tenant(snapshot, top.node, top.gpu, tenant, place_of.get(top.node))
    return outcomes


def _keep(
    service: Service,
    made: list[tuple[Asked, PlacementDecision]],
    state: ClusterState,
    leave: Callable[[], None] | None,
) -> list[Answer | CotenantError | None]:
    """Write the decisions, and end this process's turn."""
    try:
        return keep(service, made, state)
    finally:
        if leave is not None:
            leave()
