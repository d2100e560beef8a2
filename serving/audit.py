"""Who changed what: one row for every request to a route of scope `admin`, kept as long as observations are."""

from __future__ import annotations

from typing import Any

import structlog
from sqlalchemy import insert, select
from starlette.requests import Request

from profiling.errors import CotenantError
from serving.service import Service
from serving.store.tables import AuditRow, table_of

_INSERT = insert(table_of(AuditRow))
log = structlog.get_logger("cotenant.audit")


async def record(service: Service, request: Request, status: int) -> None:
    """Keep a row, and log it too: a store that is away does not hide who asked."""
    caller, action = request.scope["state"]["caller"].name, f"{request.method} {request.url.path}"[:300]
    request_id = request.scope["state"]["request_id"]
    log.info("admin action", caller=caller, action=action, status=status, request_id=request_id)
    try:
        await service.stored(_keep, service, caller, action, status, request_id)
    except CotenantError as error:
        log.warning("admin action not recorded", error=error.message)


def _keep(service: Service, caller: str, action: str, status: int, request_id: str) -> None:
    # One statement, prepared once: this is part of every change of the inventory.
    row = {"caller": caller, "action": action, "status": status, "request_id": request_id}
    with service.store.write() as session:
        session.connection().execute(_INSERT.values(at=service.store.clock), row)


def entries(service: Service, after: int, limit: int) -> list[dict[str, Any]]:
    """Actions, newest first; `after` is the id that the last page ended with."""
    query = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit)
    if after:
        query = query.where(AuditRow.id < after)
    with service.store.read() as session:
        return [
            {"id": row.id, "at": row.at, "caller": row.caller, "action": row.action, "status": row.status,
             "request_id": row.request_id}
            for row in session.scalars(query)
        ]  # fmt: skip
