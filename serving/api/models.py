"""The serving model: which version, reload, history."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from serving.handlers import models as handler
from serving.http import answer
from serving.openapi import operation
from serving.schemas import ModelEventPage, ModelState, Page
from serving.service import Service


def routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/models", tags=["models"])

    @router.get("", summary="Which version serves", **operation(answer=ModelState))
    async def state(request: Request) -> Response:
        return answer(handler.state(service))

    @router.post("/reload", summary="Load what the source has now", **operation(answer=ModelState))
    async def reload(request: Request) -> Response:
        return answer(await handler.reload(service))

    @router.get("/events", summary="Loads and refusals, newest first", **operation(answer=ModelEventPage))
    async def events(
        request: Request,
        after: Annotated[int, Query(ge=0, le=2**53)] = 0,
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
    ) -> Response:
        items = await service.stored(handler.events, service, after, limit + 1)
        return answer(Page.of(items, limit, lambda entry: str(entry["id"])))

    return router
