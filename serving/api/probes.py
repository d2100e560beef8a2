"""Probes: the most informative sets to run for a job."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from serving.handlers import probes as handler
from serving.handlers.probes import ProbesAnswer, ProbesBody
from serving.http import answer, read_body
from serving.openapi import DEADLINE, operation
from serving.routing import ServiceRoute
from serving.service import Service

_EXAMPLE = {
    "device": "v100",
    "job": "resnet18-cifar:batch_size=64",
    "running": ["lstm-wikitext2:batch_size=20", "resnet50-imagenet:batch_size=32"],
    "count": 1,
}


def routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/probes", tags=["predict"], route_class=ServiceRoute)

    @router.post(
        "",
        summary="Suggest the most informative sets to measure for a job, or the job alone",
        **operation(
            scope="read",
            body=ProbesBody,
            answer=ProbesAnswer,
            examples={"two partners": _EXAMPLE},
            errors=(404,),
            parameters=[DEADLINE],
        ),
    )
    async def suggest(request: Request) -> Response:
        return answer(await handler.probes(service, await read_body(request, ProbesBody)))

    return router
