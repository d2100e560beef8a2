"""Routes of the Kubernetes scheduler extender.

They always answer 200, in the format that a scheduler understands.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request, Response

from serving.extender import handler
from serving.http import answer, read_json
from serving.openapi import operation
from serving.routing import ServiceRoute
from serving.service import Service

_ARGUMENTS = {
    "type": "object",
    "required": ["Pod"],
    "properties": {
        "Pod": {"type": "object"},
        "Nodes": {"type": ["object", "null"]},
        "NodeNames": {"type": ["array", "null"], "items": {"type": "string"}},
    },
}
_MAP = {"type": "object", "additionalProperties": {"type": "string"}}
_FILTER = {
    "type": "object",
    "required": ["Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"],
    "properties": {
        "Nodes": {"type": ["object", "null"]},
        "NodeNames": {"type": ["array", "null"], "items": {"type": "string"}},
        "FailedNodes": _MAP,
        "FailedAndUnresolvableNodes": _MAP,
        "Error": {"type": "string"},
    },
}
_PRIORITIES = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["Host", "Score"],
        "properties": {"Host": {"type": "string"}, "Score": {"type": "integer", "minimum": 0, "maximum": 10}},
    },
}
_EXAMPLE = {
    "Pod": {
        "metadata": {
            "name": "train-7",
            "annotations": {"cotenant.dev/workload": "resnet18-cifar", "cotenant.dev/batch-size": "64"},
        },
        "spec": {"containers": []},
    },
    "NodeNames": ["node-a", "node-b"],
}


def routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/extender", tags=["kubernetes"], route_class=ServiceRoute)

    async def _answered(raw: bytes, handle: Callable[[Service, bytes], Awaitable[Any]]) -> Response:
        result = await handle(service, raw)
        response: Response = await service.batcher.off_loop(len(raw), answer, result)
        return response

    @router.post(
        "/filter",
        summary="Nodes where the pod can run",
        **operation(scope="place", body=_ARGUMENTS, answer=_FILTER, examples={"names only": _EXAMPLE}),
    )
    async def filter_(request: Request) -> Response:
        return await _answered(await read_json(request), handler.filter_nodes)

    @router.post(
        "/prioritize",
        summary="How well the pod would run on each node",
        **operation(scope="place", body=_ARGUMENTS, answer=_PRIORITIES, examples={"names only": _EXAMPLE}),
    )
    async def prioritize(request: Request) -> Response:
        return await _answered(await read_json(request), handler.prioritize_nodes)

    return router
