"""Routes of the Open Inference Protocol v2. Problems carry the protocol's `error` member as well."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from profiling.errors import CotenantError
from serving.app_version import version
from serving.http import answer
from serving.oip import handler
from serving.oip.tensors import LENGTH_HEADER
from serving.openapi import DEADLINE, header, operation
from serving.routing import ServiceRoute
from serving.service import Service

_TENSOR = {
    "type": "object",
    "required": ["name", "datatype", "shape"],
    "properties": {
        "name": {"type": "string"},
        "datatype": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "data": {"type": "array", "items": {}},
        "parameters": {"type": "object"},
    },
}
_METADATA = {
    "type": "object",
    "required": ["name", "versions", "platform", "inputs", "outputs"],
    "properties": {
        "name": {"type": "string"},
        "versions": {"type": "array", "items": {"type": "string"}},
        "platform": {"type": "string"},
        "inputs": {"type": "array", "items": _TENSOR},
        "outputs": {"type": "array", "items": _TENSOR},
    },
}
_INFER = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string"},
        "parameters": {"type": "object"},
        "inputs": {"type": "array", "items": _TENSOR},
        "outputs": {
            "type": "array",
            "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
        },
    },
}
_ANSWER = {
    "type": "object",
    "required": ["model_name", "model_version", "outputs"],
    "properties": {
        "model_name": {"type": "string"},
        "model_version": {"type": "string"},
        "id": {"type": "string"},
        "outputs": {"type": "array", "items": _TENSOR},
    },
}
_EXAMPLE = {
    "inputs": [
        {"name": "device", "datatype": "BYTES", "shape": [1], "data": ["v100"]},
        {"name": "jobs", "datatype": "BYTES", "shape": [1, 2], "data": ["resnet18-cifar", "lstm-wikitext2"]},
    ]
}
_LENGTH = header("Inference-Header-Content-Length", "Length of the JSON if binary tensors follow it")
_BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


def _flag(*names: str) -> dict[str, Any]:
    kinds = {"name": {"type": "string"}, "ready": {"type": "boolean"}, "live": {"type": "boolean"}}
    return {"type": "object", "required": list(names), "properties": {n: kinds[n] for n in names}}


def routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v2", tags=["open inference protocol v2"], route_class=ServiceRoute)

    @router.get(
        "",
        summary="The server",
        **operation(scope="read", answer={"type": "object", "required": ["name", "version", "extensions"]}),
    )
    async def server() -> Response:
        return answer(
            {"name": "cotenant", "version": version(), "extensions": ["binary_tensor_data", "statistics"]}
        )

    @router.get(
        "/health/live",
        summary="Liveness: the process is running",
        **operation(scope="watch", answer=_flag("live")),
    )
    async def live() -> Response:
        return answer({"live": True})

    @router.get(
        "/health/ready",
        summary="Readiness: a model is loaded",
        **operation(scope="watch", answer=_flag("ready"), also={503: "Not ready"}),
    )
    async def ready() -> Response:
        try:
            await service.check_ready()
        except CotenantError:
            return answer({"ready": False}, 503, {"Retry-After": "1"})
        return answer({"ready": True})

    @router.get(
        "/models", summary="The models", **operation(scope="read", answer={"type": "object", "required": ["models"], "properties": {"models": {"type": "array", "items": {"type": "string"}}}})
    )  # fmt: skip
    async def models() -> Response:
        return answer({"models": [handler.MODEL]})

    @router.get(
        "/models/{name}",
        summary="Inputs and outputs",
        **operation(scope="read", answer=_METADATA, errors=(404,)),
    )
    async def metadata(name: str) -> Response:
        return answer(handler.metadata(service, name))

    @router.get(
        "/models/{name}/versions/{number}",
        summary="Inputs and outputs of a version",
        **operation(scope="read", answer=_METADATA, errors=(404,)),
    )
    async def versioned(name: str, number: str) -> Response:
        return answer(handler.metadata(service, name, number))

    @router.get(
        "/models/{name}/ready",
        summary="Whether the model is ready",
        **operation(scope="read", answer=_flag("name", "ready"), also={503: "Not ready"}, errors=(404,)),
    )
    async def model_ready(name: str) -> Response:
        return _ready(service, name, None)

    @router.get(
        "/models/{name}/versions/{number}/ready",
        summary="Whether a version is ready",
        **operation(scope="read", answer=_flag("name", "ready"), also={503: "Not ready"}, errors=(404,)),
    )
    async def version_ready(name: str, number: str) -> Response:
        return _ready(service, name, number)

    stats = operation(scope="read", answer={"type": "object", "required": ["model_stats"]}, errors=(404,))

    @router.get("/models/{name}/stats", summary="Request statistics of the answering process", **stats)
    async def statistics(name: str) -> Response:
        return answer(handler.statistics(service, name))

    @router.get(
        "/models/{name}/versions/{number}/stats",
        summary="Request statistics of a version, of the answering process",
        **stats,
    )
    async def version_statistics(name: str, number: str) -> Response:
        return answer(handler.statistics(service, name, number))

    infer = operation(
        scope="read", body=_INFER, answer=_ANSWER, examples={"one pair": _EXAMPLE}, errors=(404,),
        parameters=[_LENGTH, DEADLINE], content=_BINARY,
    )  # fmt: skip
    infer["responses"][200]["content"] |= _BINARY  # if the caller asks for binary outputs

    @router.post("/models/{name}/infer", summary="Predict", **infer)
    async def predict(request: Request, name: str) -> Response:
        return await _infer(service, request, name, None)

    @router.post("/models/{name}/versions/{number}/infer", summary="Predict with a version", **infer)
    async def predict_version(request: Request, name: str, number: str) -> Response:
        return await _infer(service, request, name, number)

    return router


def _ready(service: Service, name: str, number: str | None) -> Response:
    ready = True
    try:
        handler.check_ready(service, name, number)
    except CotenantError as error:
        if error.status != 503:
            raise
        ready = False
    return answer(
        {"name": name, "ready": ready}, 200 if ready else 503, None if ready else {"Retry-After": "1"}
    )


async def _infer(service: Service, request: Request, name: str, number: str | None) -> Response:
    length = request.headers.get(LENGTH_HEADER)
    head, tail = await handler.infer(service, name, number, await request.body(), length)
    if not tail:
        return Response(head, media_type="application/json")
    headers = {"Inference-Header-Content-Length": str(len(head))}
    return Response(head + tail, 200, headers, media_type="application/octet-stream")
