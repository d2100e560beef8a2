"""Placements on the stored cluster: confirm, end, expire. `handlers.reserving` makes the decisions."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, and_, exists, func, select
from sqlalchemy.orm import Session

from profiling.errors import ConflictError, UnknownNameError
from serving.handlers.tenancy import move, touch
from serving.handlers.versions import advance
from serving.service import Service
from serving.store.tables import NodeRow, PlacementRow, TenantRow

STALE = "not reporting"  # confirmed, but neither the job nor its node has reported for a while
_COLUMNS = tuple(PlacementRow.__table__.columns.keys())


def change(service: Service, key: str, state: str) -> dict[str, Any]:
    """Confirm or end a placement; idempotent. A repeated confirmation counts as a report.

    Raises:
        UnknownNameError: no such placement. ConflictError: it cannot change to that state.
    """
    with service.store.write() as session:
        row = _row(session, key)
        now = service.store.now(session)
        if row.state == state == "confirmed":
            row.updated_at = now  # said again, so the job still runs
        if row.state != state:
            if (
                row.state == "decided"
                and row.expires_at is not None
                and row.expires_at < now
                and state == "confirmed"
            ):
                raise ConflictError(
                    "the reservation has expired",
                    expected="confirmation before the deadline",
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


def expire(session: Session, now: float) -> None:
    """Expire decisions not confirmed in time and free their GPUs."""
    late = session.scalars(
        select(PlacementRow).where(PlacementRow.state == "decided", PlacementRow.expires_at < now)
    ).all()
    if late:
        number = advance(session).changes
        for row in late:
            move(session, row, "expired", now)
            touch(session, row.node, number)


def list_placements(service: Service, state: str | None, after: int, limit: int) -> list[dict[str, Any]]:
    """Entries, newest first, of one state or those that are `STALE`.

    `after` is the last sequence number of the previous page.
    """
    with service.store.read() as session:
        stale = _is_stale(service, session)
        query = select(PlacementRow, stale).order_by(PlacementRow.sequence.desc()).limit(limit)
        if state:
            query = query.where(stale if state == STALE else PlacementRow.state == state)
        if after:
            query = query.where(PlacementRow.sequence < after)
        return [entry_of(row, late) for row, late in session.execute(query)]


def count_placements(service: Service) -> dict[str, int]:
    """How many placements wait, and how many are `STALE`."""
    with service.store.read() as session:
        wanted = {"waiting": PlacementRow.state == "waiting", STALE: _is_stale(service, session)}
        count = select(func.count()).select_from(PlacementRow)
        return {name: session.scalar(count.where(which)) or 0 for name, which in wanted.items()}


def get_placement(service: Service, key: str) -> dict[str, Any]:
    """One entry. Raises `UnknownNameError`."""
    with service.store.read() as session:
        row = _row(session, key)
        late = session.scalar(select(_is_stale(service, session)).where(PlacementRow.id == row.id))
        return entry_of(row, bool(late))


def _is_stale(service: Service, session: Session) -> ColumnElement[bool]:
    """Whether neither a confirmed job nor its node has reported for a while, by the database's clock."""
    before = service.store.now(session) - service.config.stale_s
    heard = exists().where(NodeRow.name == PlacementRow.node, NodeRow.reported_at >= before)
    return and_(PlacementRow.state == "confirmed", PlacementRow.updated_at < before, ~heard)


def entry_of(row: PlacementRow, stale: bool = False) -> dict[str, Any]:
    """A placement as returned to callers."""
    return entry_from({name: getattr(row, name) for name in _COLUMNS}, stale)


def entry_from(values: dict[str, Any], stale: bool = False) -> dict[str, Any]:
    """The same, from the values of its row."""
    return values | {"stale": stale}


def _row(session: Session, key: str) -> PlacementRow:
    row = session.get(PlacementRow, key[:32]) if len(key) == 32 else None
    if row is None:
        raise UnknownNameError("unknown placement", expected="an id of /v1/placements", got=repr(key[:80]))
    return row
