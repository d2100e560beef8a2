"""Housekeeping of the store: expires unconfirmed placements and deletes old rows."""

from __future__ import annotations

from sqlalchemy import delete, select

from serving.handlers.idempotency import forget_old
from serving.handlers.placements import expire
from serving.service import Service
from serving.store.tables import AuditRow, ModelEventRow, ObservationRow, PlacementRow

_AT_ONCE = 5_000  # rows deleted per transaction, so that nobody waits long


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
        for table, at in (
            (ObservationRow, ObservationRow.observed_at),
            (ModelEventRow, ModelEventRow.at),
            (AuditRow, AuditRow.at),
        ):
            old = select(table.id).where(at < before).limit(_AT_ONCE)
            session.execute(delete(table).where(table.id.in_(old)))
        return expire(session, now)
