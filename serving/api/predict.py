"""Predictions: one co-location set, or many."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from serving.handlers import predict as handler
from serving.http import read_json
from serving.openapi import DEADLINE, operation
from serving.routing import DirectRoute
from serving.schemas import BatchAnswer, BatchBody, PredictionAnswer, SetBody
from serving.service import Service

_EXAMPLE = {
    "device": "v100",
    "sharing": "time-slice",
    "jobs": [
        "resnet18-cifar:batch_size=64",
        {"workload": "lstm-wikitext2", "batch_size": 20, "frozen_prefix": 1},
    ],
}


def routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/predict", tags=["predict"], route_class=DirectRoute)

    @router.post(
        "",
        summary="Predict a co-location set",
        **operation(
            scope="read",
            body=SetBody,
            answer=PredictionAnswer,
            examples={"pair": _EXAMPLE},
            errors=(404,),
            parameters=[DEADLINE],
        ),
    )
    async def predict(request: Request) -> Response:
        body = await handler.predict(service, await read_json(request))
        return Response(body, media_type="application/json")

    @router.post(
        "/batch",
        summary="Predict many co-location sets",
        **operation(
            scope="read",
            body=BatchBody, answer=BatchAnswer, examples={"one pair": {"sets": [_EXAMPLE]}}, errors=(404,),
            parameters=[DEADLINE],
        ),
    )  # fmt: skip
    async def many(request: Request) -> Response:
        body = await handler.predict_batch(service, await read_json(request))
        return Response(body, media_type="application/json")

    return router
