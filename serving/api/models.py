"""The model in service: version, reload, history."""

from __future__ import annotations

from fastapi import APIRouter, Response

from serving.admin_schemas import ModelEventPage, ModelState
from serving.handlers import models as handler
from serving.http import answer
from serving.openapi import After, Limit, operation
from serving.routing import ServiceRoute
from serving.schemas import Page
from serving.service import Service


def routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/models", tags=["models"], route_class=ServiceRoute)

    @router.get("", summary="The model version in service", **operation(scope="read", answer=ModelState))
    async def state() -> Response:
        return answer(handler.state(service))

    @router.post(
        "/reload", summary="Reload the model from its source", **operation(scope="admin", answer=ModelState)
    )
    async def reload() -> Response:
        return answer(await handler.reload(service))

    @router.get(
        "/events",
        summary="Model loads, accepted and rejected, newest first",
        **operation(scope="read", answer=ModelEventPage),
    )
    async def events(after: After = "0", limit: Limit = 50) -> Response:
        items = await service.read(handler.events, service, int(after), limit + 1)
        return answer(Page.of(items, limit, lambda entry: str(entry["id"])))

    return router
