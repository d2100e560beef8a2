"""Plans for one card: whole, shared, or partitioned by MIG."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from serving.handlers import slice_plans as handler
from serving.handlers.slice_plans import SlicePlanAnswer, SlicePlanBody
from serving.http import answer, read_body
from serving.openapi import DEADLINE, operation
from serving.routing import ServiceRoute
from serving.service import Service

_EXAMPLE = {
    "device": "a100",
    "jobs": ["resnet18-cifar:batch_size=64", "lstm-wikitext2:batch_size=20"],
    "objective": "throughput",
}


def routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/slice-plans", tags=["predict"], route_class=ServiceRoute)

    @router.post(
        "",
        summary="Plan the best use of one card for some jobs: whole, shared, or MIG slices",
        **operation(
            scope="read",
            body=SlicePlanBody,
            answer=SlicePlanAnswer,
            examples={"two jobs on an A100": _EXAMPLE},
            errors=(404, 409),
            parameters=[DEADLINE],
        ),
    )
    async def plan(request: Request) -> Response:
        return answer(await handler.slice_plan(service, await read_body(request, SlicePlanBody)))

    return router
