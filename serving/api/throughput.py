"""Throughput of one job with frozen layers."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from serving.handlers import throughput as handler
from serving.handlers.throughput import ThroughputAnswer, ThroughputBody
from serving.http import answer, read_body
from serving.openapi import DEADLINE, operation
from serving.routing import ServiceRoute
from serving.service import Service

_EXAMPLE = {
    "device": "v100",
    "job": "resnet18-cifar:batch_size=64",
    "frozen_prefixes": [0, 10, 20],
    "gpus": 2,
}


def routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/layer-throughput", tags=["predict"], route_class=ServiceRoute)

    @router.post(
        "",
        summary="Throughput of a job with its leading layers frozen",
        **operation(
            scope="read",
            body=ThroughputBody,
            answer=ThroughputAnswer,
            examples={"three prefixes": _EXAMPLE},
            errors=(404,),
            parameters=[DEADLINE],
        ),
    )
    async def layers(request: Request) -> Response:
        return answer(await handler.throughput(service, await read_body(request, ThroughputBody)))

    return router
