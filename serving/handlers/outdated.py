"""Whether the stored cluster is outdated: the scheduler that keeps it has not stored it again in time."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from serving.service import Service
from serving.store import Store
from serving.store.tables import ClusterRow, table_of

_CLUSTER = table_of(ClusterRow).c
_READ = select(_CLUSTER.valid_until).where(_CLUSTER.id == 1)


def cluster_outdated_s(service: Service) -> float | None:
    """`outdated_s`, in a session of its own."""
    with service.store.read() as session:
        return outdated_s(service.store, session)


def outdated_s(store: Store, session: Session) -> float | None:
    """Seconds since the stored cluster became outdated; None if it is not."""
    valid_until = session.connection().execute(_READ).scalar()
    if valid_until is None:
        return None
    late_s = store.now(session) - float(valid_until)
    return late_s if late_s >= 0 else None
