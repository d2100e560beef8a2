"""The audit log: one row for every request to a route with scope `admin`, kept as long as observations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import insert
from sqlalchemy.orm import Session
from starlette.requests import Request

from profiling.errors import CotenantError
from serving.service import Service
from serving.store import Store
from serving.store.tables import AuditRow, newest, table_of

_INSERT = insert(table_of(AuditRow))
log = structlog.get_logger("cotenant.audit")


@dataclass(slots=True)
class Entry:
    """An admin's request and the status recorded for it."""

    caller: str
    action: str
    request_id: str
    recorded: int | None = None

    @classmethod
    def of(cls, request: Request) -> Entry:
        """The entry of a request; the same object on every call."""
        state = request.scope["state"]
        path = request.url.path.replace("\x00", "%00")  # which PostgreSQL could not store
        entry: Entry = state.setdefault(
            "audit", cls(state["caller"].name, f"{request.method} {path}"[:300], state["request_id"])
        )
        return entry


def add(store: Store, session: Session, entry: Entry, status: int) -> None:
    """Record the entry in the transaction that carries out the request: both are kept, or neither."""
    # Prepared once, because every inventory change runs it.
    row = {"caller": entry.caller, "action": entry.action, "status": status, "request_id": entry.request_id}
    session.connection().execute(_INSERT.values(at=store.clock), row)
    entry.recorded = status


async def record(service: Service, request: Request, status: int) -> None:
    """Store the row unless it is stored already, and log it.

    The log keeps who asked even while the store is down.
    """
    entry = Entry.of(request)
    log.info(
        "admin action",
        caller=entry.caller,
        action=entry.action,
        status=status,
        request_id=entry.request_id,
    )
    if entry.recorded == status:
        return
    try:
        await service.stored(_keep, service.store, entry, status)
    except CotenantError as error:
        log.warning("admin action not recorded", error=error.message)


def _keep(store: Store, entry: Entry, status: int) -> None:
    with store.write() as session:
        add(store, session, entry, status)


def entries(service: Service, after: int, limit: int) -> list[dict[str, Any]]:
    """Actions, newest first; `after` is the last id of the previous page."""
    with service.store.read() as session:
        return [
            {"id": row.id, "at": row.at, "caller": row.caller, "action": row.action, "status": row.status,
             "request_id": row.request_id}
            for row in newest(session, AuditRow, after, limit)
        ]  # fmt: skip
