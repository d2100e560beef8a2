"""Placements on the stored cluster: decided (and reserved), confirmed, ended, or expired where nobody confirmed."""

from __future__ import annotations

import time
import uuid
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from profiling.errors import ConflictError, UnknownNameError
from profiling.workload import Workload
from scheduling.core.snapshot import Tenant
from scheduling.placement.decision import PlacementDecision
from scheduling.placement.ranking import PlacementConfig
from serving.handlers.cluster import advance, stored_snapshot, tenant_row
from serving.handlers.idempotency import remember, replay
from serving.handlers.place import choose
from serving.http import Once, PreconditionError
from serving.schemas import PlacementBody, job_of
from serving.service import Service
from serving.store.tables import PlacementRow, TenantRow

#: What may follow what. A waiting job is asked for again, and then is another placement.
_NEXT = {"waiting": ("ended",), "decided": ("confirmed", "ended"), "confirmed": ("ended",)}
_TRIES = 8
_UNKNOWN_ITERATIONS = 1e6


async def decide(service: Service, body: PlacementBody, once: Once | None) -> tuple[int, dict[str, Any]]:
    """Choose a GPU of the stored cluster and reserve it. Returns status and entry.

    The decision is written only if the cluster is still the one that it was made on; otherwise it is made again.

    Raises:
        ConflictError: the cluster kept changing.
        InfeasibleError: the job fits on no GPU of the cluster.
    """
    job = job_of(body.job)
    config = PlacementConfig(objective=body.objective, max_slowdown=body.max_slowdown)
    if once is not None:
        given = await service.stored(_replayed, service, once)
        if given is not None:
            return given
    for _ in range(_TRIES):
        snapshot, version = await service.stored(stored_snapshot, service)
        decision = await choose(service, job, body.iterations, snapshot, config)
        try:
            return await service.stored(_keep, service, body, job, decision, version, once)
        except PreconditionError:
            continue
        except ConflictError:
            given = await service.stored(_replayed, service, once)
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
    version: int,
    once: Once | None,
) -> tuple[int, dict[str, Any]]:
    now = time.time()
    placed = decision.decision == "place"
    top = decision.ranked[0] if placed else None
    with service.store.write() as session:
        given = replay(session, once)
        if given is not None:
            return given
        if placed:
            version = advance(session, version).version
        row = PlacementRow(
            id=uuid.uuid4().hex,
            sequence=(session.scalar(select(func.max(PlacementRow.sequence))) or 0) + 1,
            job=str(job),
            job_id=body.job_id,
            iterations=body.iterations,
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
            tenant = Tenant(job, left, body.job_id or row.id)
            session.flush()
            session.add(tenant_row(top.node, top.gpu, tenant, row.id))
        entry = entry_of(row)
        remember(session, once, 201, entry)
        return 201, entry


def change(service: Service, key: str, state: str) -> dict[str, Any]:
    """Confirm or end a placement; doing it again changes nothing.

    Raises:
        UnknownNameError: no such placement. ConflictError: it is in a state that this cannot follow.
    """
    with service.store.write() as session:
        row = _row(session, key)
        if row.state == state:
            return entry_of(row)
        if state not in _NEXT.get(row.state, ()):
            allowed = " or ".join(s for s, after in _NEXT.items() if state in after)
            raise ConflictError(
                f"the placement cannot be {state}", expected=f"state {allowed}", got=f"state {row.state}"
            )
        _set_state(session, row, state)
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
        tenant.iterations_left = iterations_left
        row.updated_at = time.time()
        advance(session, None)
        return entry_of(row)


def expire(session: Session, now: float) -> int:
    """Free the GPUs of decisions that nobody confirmed in time. Returns how many."""
    late = session.scalars(
        select(PlacementRow).where(PlacementRow.state == "decided", PlacementRow.expires_at < now)
    ).all()
    for row in late:
        _set_state(session, row, "expired")
    return len(late)


def _set_state(session: Session, row: PlacementRow, state: str) -> None:
    row.state, row.updated_at, row.expires_at = state, time.time(), None
    if state in ("ended", "expired"):
        removed = session.scalars(select(TenantRow.id).where(TenantRow.placement_id == row.id)).all()
        if removed:
            session.execute(delete(TenantRow).where(TenantRow.placement_id == row.id))
            advance(session, None)


def list_placements(service: Service, state: str | None, after: int, limit: int) -> list[dict[str, Any]]:
    """Entries, newest first; `after` is the sequence number that the last page ended with."""
    query = select(PlacementRow).order_by(PlacementRow.sequence.desc()).limit(limit)
    if state:
        query = query.where(PlacementRow.state == state)
    if after:
        query = query.where(PlacementRow.sequence < after)
    with service.store.read() as session:
        return [entry_of(row) for row in session.scalars(query)]


def get_placement(service: Service, key: str) -> dict[str, Any]:
    """One entry. Raises `UnknownNameError`."""
    with service.store.read() as session:
        return entry_of(_row(session, key))


def entry_of(row: PlacementRow) -> dict[str, Any]:
    """What a caller sees of a placement."""
    return {
        "id": row.id,
        "sequence": row.sequence,
        "job": row.job,
        "job_id": row.job_id,
        "iterations": row.iterations,
        "state": row.state,
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
        raise UnknownNameError(
            "placement is not known", expected="an id of /v1/placements", got=repr(key[:80])
        )
    return row
