"""Placements on the stored cluster: confirm, end, expire. `handlers.reserving` makes the decisions."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from profiling.errors import ConflictError, UnknownNameError
from serving.handlers.tenancy import move, touch
from serving.handlers.versions import advance
from serving.service import Service
from serving.store.tables import NodeRow, PlacementRow, TenantRow

_COLUMNS = tuple(PlacementRow.__table__.columns.keys())


def change(service: Service, key: str, state: str) -> dict[str, Any]:
    """Confirm or end a placement; idempotent.

    Raises:
        UnknownNameError: no such placement. ConflictError: it cannot change to that state.
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


def expire(session: Session, now: float) -> int:
    """Expire decisions not confirmed in time and free their GPUs. Returns how many."""
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
    """Entries, newest first; `after` is the last sequence number of the previous page."""
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
    """Confirmed jobs for which neither job nor node has reported for a while, by the database's clock."""

    def __init__(self, service: Service, session: Session) -> None:
        self.session, self.before = session, service.store.now(session) - service.config.stale_s

    def of(self, row: PlacementRow) -> bool:
        if row.state != "confirmed" or row.updated_at >= self.before:
            return False
        node = self.session.get(NodeRow, row.node)
        return node is None or node.reported_at < self.before


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
