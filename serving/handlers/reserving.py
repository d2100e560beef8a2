"""Decisions on the stored cluster, each reserved as it is made; all that wait together share one look and one transaction.

A decision is written only if its GPU still has no tenant but those that it was ranked with; otherwise it is made again.
Changes of other GPUs, of iterations left, and departures do not matter. Processes take turns, so that this is rare.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, insert, select, update
from sqlalchemy.orm import Session

from profiling.errors import ConflictError, CotenantError
from profiling.workload import Workload
from scheduling.core.snapshot import Tenant
from scheduling.placement.decision import PlacementDecision
from scheduling.placement.ranking import PlacementConfig
from serving.cluster_state import ClusterState
from serving.handlers.cluster import advance, stored_state
from serving.handlers.idempotency import remember, replay
from serving.handlers.place import choose, prepare, with_tenant
from serving.handlers.placements import entry_of
from serving.handlers.tenancy import values_of
from serving.http import Once
from serving.lanes import CALLER, FairQueue, OverloadError
from serving.schemas import PlacementBody, job_of
from serving.service import Service
from serving.store.tables import NodeRow, PlacementRow, TenantRow

_TRIES = 40
_TOGETHER, _TOGETHER_S = 32, 0.05  # decisions of one transaction, and how long it may take to make them
_TURN_S = 0.25  # a process that keeps its turn for longer is not waited for
_UNKNOWN_ITERATIONS = 1e6

Answer = tuple[int, dict[str, Any]]  # status and entry


@dataclass(slots=True, eq=False)
class Request:
    """A request that waits for its decision."""

    body: PlacementBody
    job: Workload
    config: PlacementConfig
    once: Once | None
    caller: str
    answer: asyncio.Future[Answer]
    tries: int = 0

    def fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def tenant(self, placement_id: str = "") -> Tenant:
        left = self.body.iterations if self.body.iterations is not None else _UNKNOWN_ITERATIONS
        return Tenant(self.job, left, self.body.job_id or placement_id, self.body.max_slowdown)


Decided = tuple[Request, PlacementDecision]


class Reserver:
    """Decides for one service; callers take turns, and their number is bounded as that of a lane."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._waiting: FairQueue[Request] = FairQueue()
        self._task: asyncio.Task[None] | None = None

    async def reserve(self, body: PlacementBody, once: Once | None) -> Answer:
        """Choose a GPU of the stored cluster and reserve it. Returns status and entry.

        Raises:
            ConflictError: the cluster kept changing.
            InfeasibleError: the job fits on no GPU of the cluster.
            OverloadError: too many others wait.
        """
        service, job = self.service, job_of(body.job)
        config = PlacementConfig(objective=body.objective, max_slowdown=body.max_slowdown)
        if once is not None:
            given = await service.read(_replayed, service, once)
            if given is not None:
                return given
        state = service.cluster.latest
        if state is None:
            state = await service.read(stored_state, service)
        await prepare(
            service, job, state.snapshot
        )  # what is new is encoded before others have to wait for it
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        request = Request(body, job, config, once, CALLER.get(), answer)
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
        """Refuse a request that waits; one that is being decided is answered soon."""
        if self._waiting.remove(request.caller, request) or why == "length":
            self.service.metrics.refused.labels(f"reserving_{why}").inc()
            request.fail(OverloadError("too many placements wait", hint="try again in a second"))

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
            answers = await service.stored(_keep, service, decided, state)
        finally:
            if leave is not None:
                await service.read(leave)
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
                request.fail(
                    ConflictError("the cluster changes faster than a decision is made", hint="try again")
                )

    async def _choose(self, group: list[Request], state: ClusterState) -> list[Decided]:
        """Decide one after the other, each with those before it in view; whoever there is no time for waits on."""
        service, snapshot, began = self.service, state.snapshot, time.monotonic()
        decided: list[Decided] = []
        for number, request in enumerate(group):
            if request.answer.done():
                continue
            if decided and time.monotonic() - began > _TOGETHER_S:
                for later in reversed(group[number:]):
                    self._waiting.push_first(later.caller, later)
                break
            try:
                decision = await choose(
                    service, request.job, request.body.iterations, snapshot, request.config
                )
            except CotenantError as error:
                request.fail(error)
                continue
            decided.append((request, decision))
            if decision.decision == "place":
                top = decision.ranked[0]
                snapshot = with_tenant(snapshot, top.node, top.gpu, request.tenant())
        return decided


def _replayed(service: Service, once: Once) -> Answer | None:
    with service.store.read() as session:
        return replay(session, once)


def _begin(service: Service) -> tuple[ClusterState, Callable[[], None] | None]:
    """The state to decide on, and what ends this process's turn."""
    leave = service.store.take_turn(_TURN_S)
    try:
        return service.cluster.current(), leave
    except BaseException:
        if leave is not None:
            leave()
        raise


def _keep(
    service: Service, decided: list[Decided], state: ClusterState
) -> list[Answer | CotenantError | None]:
    """Write the decisions in one transaction; None for one whose GPU is no longer as it was ranked."""
    if not decided:
        return []
    with service.store.write() as session:
        meta = advance(session, counts=False)
        same = meta.changes == state.changes + 1
        now, model = service.store.now(session), service.life.current().version
        sequence = session.scalar(select(func.max(PlacementRow.sequence))) or 0
        answers: list[Answer | CotenantError | None] = []
        tenants: list[dict[str, Any]] = []
        for request, decision in decided:
            try:
                given = replay(session, request.once)
            except CotenantError as error:
                answers.append(error)
                continue
            if given is not None:
                answers.append(given)
                continue
            top = decision.ranked[0] if decision.decision == "place" else None
            if top is not None and not same and not _as_ranked(session, top.node, top.gpu, state):
                answers.append(None)
                continue
            sequence += 1
            meta.version += int(top is not None)
            row = PlacementRow(
                id=uuid.uuid4().hex,
                sequence=sequence,
                job=str(request.job),
                job_id=request.body.job_id,
                iterations=request.body.iterations,
                max_slowdown=request.body.max_slowdown,
                state="decided" if top else "waiting",
                node=top.node if top else None,
                gpu=top.gpu if top else None,
                decision=decision.to_json(),
                model_version=model,
                cluster_version=meta.version,
                created_at=now,
                updated_at=now,
                expires_at=now + service.config.reservation_s if top else None,
            )
            session.add(row)
            if top is not None:
                tenants.append(values_of(top.node, top.gpu, request.tenant(row.id), row.id))
            entry = entry_of(row)
            remember(session, request.once, 201, entry)
            if request.once is not None:
                session.flush()  # the same key may come again further down
            answers.append((201, entry))
        if tenants:
            session.execute(insert(TenantRow), tenants)
            nodes = {tenant["node"] for tenant in tenants}
            session.execute(update(NodeRow).where(NodeRow.name.in_(nodes)).values(revision=meta.changes))
    for tenant in tenants:
        gpus = state.snapshot.nodes[state.place_of[tenant["node"]]].gpus
        device = next(gpu.device for gpu in gpus if gpu.id == tenant["gpu"])
        service.metrics.placed.labels(device).inc()
    return answers


def _as_ranked(session: Session, node: str, gpu: str, state: ClusterState) -> bool:
    """Whether a GPU is as in `state`, or better (a tenant left)."""
    row = session.get(NodeRow, node)
    if row is None or row.removed or not any(one["id"] == gpu for one in row.gpus):
        return False
    seen = {seat.tenant_id for seat in state.seats_on(node, gpu)}
    present = session.scalars(select(TenantRow.id).where(TenantRow.node == node, TenantRow.gpu == gpu))
    return seen.issuperset(present)
