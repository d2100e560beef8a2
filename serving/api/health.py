"""Liveness, readiness, metrics."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from serving.http import answer
from serving.openapi import operation
from serving.routing import ServiceRoute
from serving.service import Service

_STATUS = {"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}}}


def routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["health"], route_class=ServiceRoute)

    @router.get(
        "/v1/health/live",
        summary="Liveness: the process is running",
        **operation(scope="watch", answer=_STATUS),
    )
    async def live() -> Response:
        return answer({"status": "live"})

    @router.get(
        "/v1/health/ready",
        summary="Readiness: a model is loaded, captures have started and the store responds",
        **operation(
            scope="watch",
            answer=_STATUS
            | {"properties": {"status": {"type": "string"}, "model_version": {"type": "string"}}},
        ),
    )
    async def ready() -> Response:
        await service.check_ready()
        return answer({"status": "ready", "model_version": service.life.current().version})

    @router.get(
        "/metrics",
        summary="Prometheus metrics",
        response_class=PlainTextResponse,
        **operation(scope="read", answer={"type": "string"}, media="text/plain"),
    )
    async def metrics() -> Response:
        return Response(await service.render_metrics(), media_type="text/plain; version=0.0.4")

    return router
