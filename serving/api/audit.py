"""The audit log of admin actions."""

from __future__ import annotations

from fastapi import APIRouter, Response

from serving import audit
from serving.admin_schemas import AuditPage
from serving.http import answer
from serving.openapi import After, Limit, operation
from serving.routing import ServiceRoute
from serving.schemas import Page
from serving.service import Service


def routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/audit", tags=["audit"], route_class=ServiceRoute)

    @router.get("", summary="Admin actions, newest first", **operation(scope="admin", answer=AuditPage))
    async def listing(after: After = "0", limit: Limit = 50) -> Response:
        items = await service.read(audit.entries, service, int(after), limit + 1)
        return answer(Page.of(items, limit, lambda entry: str(entry["id"])))

    return router
