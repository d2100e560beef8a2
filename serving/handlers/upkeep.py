"""Housekeeping of the store: expires unconfirmed placements and deletes old rows."""

from __future__ import annotations

import time
from typing import Any, cast

from sqlalchemy import CursorResult, delete, select

from serving.handlers.idempotency import forget_old
from serving.handlers.outdated import outdated_s
from serving.handlers.placements import expire
from serving.service import Service
from serving.store.observations import oldest_at
from serving.store.tables import AuditRow, ModelEventRow, NodeRow, ObservationRow, PlacementRow

_AT_ONCE = 5_000  # rows deleted per transaction, so that nobody waits long
# How long a removed node keeps its row; every process reads the changes far more often.
_REMOVED_S = 24 * 3600.0
# How long observations may be overdue. Every process learns the rest anew after a deletion, so they are rare.
_OVERDUE_S, _OVERDUE_RATIO = 3600.0, 0.01
# Then all that are overdue go, for at most this long: far less than a thread of the store may take.
_DELETING_S = 5.0


def upkeep(service: Service) -> None:
    """Expire unconfirmed placements and delete rows past their retention."""
    with service.store.write() as session:
        now = service.store.now(session)
        forget_old(session, now)
        before = now - service.config.retention_s
        placements = select(PlacementRow.id).where(
            PlacementRow.state.in_(("waiting", "ended", "expired")), PlacementRow.updated_at < before
        )
        session.execute(delete(PlacementRow).where(PlacementRow.id.in_(placements.limit(_AT_ONCE))))
        gone = select(NodeRow.name).where(NodeRow.removed, NodeRow.reported_at < now - _REMOVED_S)
        session.execute(delete(NodeRow).where(NodeRow.name.in_(gone.limit(_AT_ONCE))))
        for table in (ModelEventRow, AuditRow):
            old = select(table.id).where(table.at < before).limit(_AT_ONCE)
            session.execute(delete(table).where(table.id.in_(old)))
        expire(session, now)
        service.metrics.cluster_outdated.set(outdated_s(service.store, session) is not None)
    _delete_observations(service, before)


def _delete_observations(service: Service, before: float) -> None:
    """Delete observations made `before`, the oldest first: by those the processes notice it."""
    row, overdue_s = ObservationRow, min(_OVERDUE_S, _OVERDUE_RATIO * service.config.retention_s)
    if oldest_at(service.store) > before - overdue_s:
        return
    old = select(row.id).where(row.observed_at < before).order_by(row.observed_at, row.id).limit(_AT_ONCE)
    until = time.monotonic() + _DELETING_S
    while time.monotonic() < until:
        with service.store.write() as session:
            deleted = cast(CursorResult[Any], session.execute(delete(row).where(row.id.in_(old))))
            if deleted.rowcount < _AT_ONCE:
                return
