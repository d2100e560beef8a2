"""Placements on the stored cluster: decided (and reserved), confirmed, ended, or expired where nobody confirmed."""

from __future__ import annotations

import asyncio
import random
import uuid
from dataclasses import replace
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from profiling.errors import ConflictError, UnknownNameError
from profiling.workload import Workload
from scheduling.core.snapshot import Tenant
from scheduling.placement.decision import PlacementDecision, RankedGpu
from scheduling.placement.ranking import PlacementConfig
from serving.cluster_state import ClusterState
from serving.handlers.cluster import advance, stored_state
from serving.handlers.idempotency import remember, replay
from serving.handlers.place import choose, prepare
from serving.handlers.tenancy import move, touch, values_of
from serving.http import Once
from serving.schemas import PlacementBody, job_of
from serving.service import Service
from serving.store.tables import NodeRow, PlacementRow, TenantRow

_EXACT_TRIES = 3  # decisions made again before the next best GPU that is still free is taken
_TRIES = 40
_UNKNOWN_ITERATIONS = 1e6


class _Taken(Exception):
    """The GPU that was chosen is no longer as it was ranked."""


async def decide(service: Service, body: PlacementBody, once: Once | None) -> tuple[int, dict[str, Any]]:
    """Choose a GPU of the stored cluster and reserve it. Returns status and entry.

    The decision is written only if the chosen GPU still has no tenant but those that it was ranked with; otherwise it is made
    again. Changes of other GPUs, of iterations left, and departures do not matter.

    Raises:
        ConflictError: the cluster kept changing.
        InfeasibleError: the job fits on no GPU of the cluster.
    """
    job = job_of(body.job)
    config = PlacementConfig(objective=body.objective, max_slowdown=body.max_slowdown)
    if once is not None:
        given = await service.read(_replayed, service, once)
        if given is not None:
            return given
    await prepare(service, job, (await service.read(stored_state, service)).snapshot)
    for attempt in range(_TRIES):
        try:
            # One after the other in a process: who decides sees what the one before reserved, and only other processes
            # can be in the way.
            async with service.reserving:
                state = await service.read(stored_state, service)
                decision = await choose(service, job, body.iterations, state.snapshot, config)
                return await service.stored(
                    _keep, service, body, job, decision, state, once, attempt < _EXACT_TRIES
                )
        except _Taken:
            # Others decide on the same state: who was late waits a little, each for another time.
            await asyncio.sleep(random.uniform(0.0, 0.005 * min(attempt + 1, 8)))
        except ConflictError:
            given = await service.read(_replayed, service, once)
            if given is not None:
                return given
            raise
    raise ConflictError("the cluster changes faster than a decision is made", hint="try again")


def _replayed(service: Service, once: Once | None) -> tuple[int, dict[str, Any]] | None:
    with service.store.read() as session:
        return replay(session, once)


def _keep(
    service: Service,
    body: PlacementBody,
    job: Workload,
    decision: PlacementDecision,
    state: ClusterState,
    once: Once | None,
    exact: bool,
) -> tuple[int, dict[str, Any]]:
    placed = decision.decision == "place"
    with service.store.write() as session:
        given = replay(session, once)
        if given is not None:
            return given
        now, number, version = service.store.now(session), 0, state.version
        if placed:
            ranked = _still_as_ranked(session, decision.ranked, state, exact)
            if not ranked:
                raise _Taken
            decision = replace(decision, ranked=ranked)
            meta = advance(session)
            number, version = meta.changes, meta.version
        top = decision.ranked[0] if placed else None
        row = PlacementRow(
            id=uuid.uuid4().hex,
            sequence=(session.scalar(select(func.max(PlacementRow.sequence))) or 0) + 1,
            job=str(job),
            job_id=body.job_id,
            iterations=body.iterations,
            max_slowdown=body.max_slowdown,
            state="decided" if placed else "waiting",
            node=top.node if top else None,
            gpu=top.gpu if top else None,
            decision=decision.to_json(),
            model_version=service.life.current().version,
            cluster_version=version,
            created_at=now,
            updated_at=now,
            expires_at=now + service.config.reservation_s if placed else None,
        )
        session.add(row)
        if top is not None:
            left = body.iterations if body.iterations is not None else _UNKNOWN_ITERATIONS
            tenant = Tenant(job, left, body.job_id or row.id, body.max_slowdown)
            session.flush()
            session.add(TenantRow(**values_of(top.node, top.gpu, tenant, row.id)))
            touch(session, top.node, number)
        entry = entry_of(row)
        remember(session, once, 201, entry)
        return 201, entry


def _still_as_ranked(
    session: Session, ranked: tuple[RankedGpu, ...], state: ClusterState, exact: bool
) -> tuple[RankedGpu, ...]:
    """The ranked GPUs from the first one on that is as it was ranked, or better (a tenant left); empty where none is.

    Args:
        exact: only GPUs as good as the first count.
    """
    for index, candidate in enumerate(ranked):
        if exact and candidate.score > ranked[0].score * (1 + 1e-9):
            break
        node = session.get(NodeRow, candidate.node)
        if node is None or node.removed or not any(gpu["id"] == candidate.gpu for gpu in node.gpus):
            continue
        seen = {seat.tenant_id for seat in state.seats.get((candidate.node, candidate.gpu), ())}
        present = session.scalars(
            select(TenantRow.id).where(TenantRow.node == candidate.node, TenantRow.gpu == candidate.gpu)
        )
        if seen.issuperset(present):
            return ranked[index:]
    return ()


def change(service: Service, key: str, state: str) -> dict[str, Any]:
    """Confirm or end a placement; doing it again changes nothing.

    Raises:
        UnknownNameError: no such placement. ConflictError: it cannot go into that state.
    """
    with service.store.write() as session:
        row = _row(session, key)
        now = service.store.now(session)
        if row.state != state:
            if (
                row.state == "decided"
                and row.expires_at is not None
                and row.expires_at < now
                and state == "confirmed"
            ):
                raise ConflictError(
                    "the reservation has expired",
                    expected="a confirmation in time",
                    got=f"{now - row.expires_at:.0f} s late",
                )
            freed = move(session, row, state, now)
            if freed:
                touch(session, row.node, advance(session).changes)
        return entry_of(row)


def progress(service: Service, key: str, iterations_left: float) -> dict[str, Any]:
    """Set how many iterations a placed job has left.

    Raises:
        UnknownNameError: no such placement. ConflictError: it holds no GPU.
    """
    with service.store.write() as session:
        row = _row(session, key)
        tenant = session.scalars(select(TenantRow).where(TenantRow.placement_id == row.id)).first()
        if tenant is None:
            raise ConflictError(
                "the placement holds no GPU", expected="state decided or confirmed", got=f"state {row.state}"
            )
        now = service.store.now(session)
        tenant.iterations_left, row.updated_at = iterations_left, now
        touch(session, row.node, advance(session, counts=False).changes, now)
        return entry_of(row)


def expire(session: Session, now: float) -> int:
    """Free the GPUs of decisions that nobody confirmed in time. Returns how many."""
    late = session.scalars(
        select(PlacementRow).where(PlacementRow.state == "decided", PlacementRow.expires_at < now)
    ).all()
    if late:
        number = advance(session).changes
        for row in late:
            move(session, row, "expired", now)
            touch(session, row.node, number)
    return len(late)


def list_placements(service: Service, state: str | None, after: int, limit: int) -> list[dict[str, Any]]:
    """Entries, newest first; `after` is the sequence number that the last page ended with."""
    query = select(PlacementRow).order_by(PlacementRow.sequence.desc()).limit(limit)
    if state:
        query = query.where(PlacementRow.state == state)
    if after:
        query = query.where(PlacementRow.sequence < after)
    with service.store.read() as session:
        stale = _Staleness(service, session)
        return [entry_of(row, stale.of(row)) for row in session.scalars(query).all()]


def get_placement(service: Service, key: str) -> dict[str, Any]:
    """One entry. Raises `UnknownNameError`."""
    with service.store.read() as session:
        row = _row(session, key)
        return entry_of(row, _Staleness(service, session).of(row))


class _Staleness:
    """Which confirmed jobs were not heard of for long, by the database's clock: their node or they themselves."""

    def __init__(self, service: Service, session: Session) -> None:
        self.session, self.before = session, service.store.now(session) - service.config.stale_s

    def of(self, row: PlacementRow) -> bool:
        if row.state != "confirmed" or row.updated_at >= self.before:
            return False
        node = self.session.get(NodeRow, row.node)
        return node is None or node.reported_at < self.before


def entry_of(row: PlacementRow, stale: bool = False) -> dict[str, Any]:
    """What a caller sees of a placement."""
    return {
        "id": row.id,
        "sequence": row.sequence,
        "job": row.job,
        "job_id": row.job_id,
        "iterations": row.iterations,
        "max_slowdown": row.max_slowdown,
        "state": row.state,
        "stale": stale,
        "node": row.node,
        "gpu": row.gpu,
        "decision": row.decision,
        "model_version": row.model_version,
        "cluster_version": row.cluster_version,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "expires_at": row.expires_at,
    }


def _row(session: Session, key: str) -> PlacementRow:
    row = session.get(PlacementRow, key[:32]) if len(key) == 32 else None
    if row is None:
        raise UnknownNameError("unknown placement", expected="an id of /v1/placements", got=repr(key[:80]))
    return row
