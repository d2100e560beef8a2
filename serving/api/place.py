"""Choose GPUs for a job or a queue of jobs."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from serving.handlers import place as handler
from serving.http import answer, read_body
from serving.openapi import DEADLINE, any_of, operation
from serving.routing import DirectRoute
from serving.schemas import DecisionAnswer, PlaceBody, QueueAnswer
from serving.service import Service

_CLUSTER = {
    "nodes": [
        {
            "name": "node-a",
            "gpus": [
                {"id": "0", "device": "v100", "tenants": [{"job": "lstm-wikitext2:batch_size=20", "iterations_left": 5000}]},
                {"id": "1", "device": "v100"},
            ],
        }
    ]
}  # fmt: skip


def routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/place", tags=["place"], route_class=DirectRoute)

    @router.post(
        "",
        summary="Rank the GPUs for a job, or advise to wait",
        description="Uses the given `cluster`, or the stored one if it is omitted. Nothing is stored; "
        "`POST /v1/placements` decides and reserves.",
        **operation(
            scope="place",
            body=PlaceBody,
            answer=any_of(DecisionAnswer, QueueAnswer),
            examples={
                "one job": {"job": "resnet18-cifar:batch_size=64", "iterations": 10000, "cluster": _CLUSTER},
                "queue": {
                    "jobs": ["resnet18-cifar", "lstm-wikitext2"],
                    "cluster": _CLUSTER,
                    "objective": "jct",
                },
            },
            errors=(404, 409),
            parameters=[DEADLINE],
        ),
    )
    async def place(request: Request) -> Response:
        return answer(
            await handler.decide(service, await read_body(request, PlaceBody, service.batcher.off_loop))
        )

    return router
