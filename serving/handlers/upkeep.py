"""Housekeeping of the store: expires unconfirmed placements and deletes old rows."""

from __future__ import annotations

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from serving.handlers.idempotency import forget_old
from serving.handlers.placements import expire
from serving.service import Service
from serving.store.tables import AuditRow, ModelEventRow, ObservationRow, PlacementRow

_AT_ONCE = 5_000  # rows deleted per transaction, so that nobody waits long
# How long observations may be overdue. Every process learns the rest anew after a deletion, so they are rare.
_OVERDUE_S, _OVERDUE_RATIO = 3600.0, 0.01


def upkeep(service: Service) -> int:
    """Expire unconfirmed placements and delete rows past their retention.

    Returns how many placements expired.
    """
    with service.store.write() as session:
        now = service.store.now(session)
        forget_old(session, now)
        before = now - service.config.retention_s
        placements = select(PlacementRow.id).where(
            PlacementRow.state.in_(("waiting", "ended", "expired")), PlacementRow.updated_at < before
        )
        session.execute(delete(PlacementRow).where(PlacementRow.id.in_(placements.limit(_AT_ONCE))))
        for table in (ModelEventRow, AuditRow):
            old = select(table.id).where(table.at < before).limit(_AT_ONCE)
            session.execute(delete(table).where(table.id.in_(old)))
        _delete_observations(session, before, service.config.retention_s)
        return expire(session, now)


def _delete_observations(session: Session, before: float, retention_s: float) -> None:
    """Delete observations made `before`, the oldest first: by those the processes notice it."""
    row = ObservationRow
    oldest = session.scalar(select(func.min(row.observed_at)))
    if oldest is None or oldest > before - min(_OVERDUE_S, _OVERDUE_RATIO * retention_s):
        return
    old = select(row.id).where(row.observed_at < before).order_by(row.observed_at, row.id).limit(_AT_ONCE)
    session.execute(delete(row).where(row.id.in_(old)))
