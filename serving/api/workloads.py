"""Registered workloads: by zoo name, ONNX upload or graph JSON."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response
from starlette.datastructures import UploadFile

from profiling.errors import InputError
from serving.conditions import etag, tagged
from serving.handlers import workloads as handler
from serving.http import answer, decode, is_json, media_type, wrong_media_type
from serving.openapi import AFTER, CONDITIONAL, any_of, operation
from serving.routing import ServiceRoute
from serving.schemas import GraphFile, Page, RegisterBody, WorkloadEntry, WorkloadPage, job_of
from serving.service import Service

_BINARY = {"type": "string", "format": "binary"}
_UPLOADS = {
    "application/octet-stream": {"schema": _BINARY},
    "multipart/form-data": {
        "schema": {
            "type": "object",
            "required": ["file"],
            "properties": {"file": _BINARY, "name": {"type": "string"}},
        }
    },
}
_MANY = 200


def routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/workloads", tags=["workloads"], route_class=ServiceRoute)

    @router.post(
        "",
        summary="Register a model; identical content is registered once",
        description="JSON is a zoo model with its options, or the output file of `cotenant capture -o`, as "
        "is or in the field `graph`. For an ONNX upload, `batch_size` and `sequence_length` bind the "
        "dynamic dimensions. The file is read in a separate process with limits on time and memory; nothing "
        "in it is executed.",
        **operation(
            scope="admin",
            body=any_of(RegisterBody, GraphFile),
            answer=WorkloadEntry,
            status=201,
            also={200: "Already registered"},
            examples={"zoo model": {"workload": "resnet18-cifar", "batch_size": 64, "optimizer": "adam"}},
            content=_UPLOADS,
            errors=(404,),
            headers=("ETag", "Location"),
        ),
    )
    async def register(
        request: Request,
        name: Annotated[str, Query(max_length=200)] = "",
        batch_size: Annotated[int | None, Query(ge=1, le=10**9)] = None,
        sequence_length: Annotated[int | None, Query(ge=1, le=10**9)] = None,
    ) -> Response:
        declared = request.headers.get("content-type", "")
        media = media_type(declared)
        if is_json(declared):
            _refuse_dimensions(batch_size=batch_size, sequence_length=sequence_length)
            entry, new = await _register_json(service, await request.body(), name)
        elif media == "multipart/form-data":
            entry, new = await _register_form(service, request, name, batch_size, sequence_length)
        elif media in ("application/octet-stream", "application/onnx", "application/x-onnx"):
            entry, new = await handler.register_onnx(
                service, await request.body(), name or "upload", batch_size, sequence_length
            )
        else:
            raise wrong_media_type(
                "application/json, application/octet-stream (ONNX) or multipart/form-data", declared
            )
        headers = {"Location": f"/v1/workloads/{entry['hash']}", "ETag": etag(entry["hash"])}
        return answer(entry, 201 if new else 200, headers)

    @router.get("", summary="Registered workloads, by hash", **operation(scope="read", answer=WorkloadPage))
    async def listing(
        after: Annotated[str, Query(max_length=64, description=AFTER)] = "",
        limit: Annotated[int, Query(ge=1, le=_MANY)] = 50,
    ) -> Response:
        items = await service.read(handler.list_workloads, service, after, limit + 1)
        return answer(Page.of(items, limit, lambda entry: entry["hash"]))

    @router.get(
        "/{key}",
        summary="One workload",
        **operation(scope="read", answer=WorkloadEntry, errors=(404,), **CONDITIONAL),
    )
    async def get(request: Request, key: str) -> Response:
        entry = await service.read(handler.get_workload, service, key)
        return tagged(request, entry, etag(entry["hash"]))

    @router.get(
        "/{key}/graph",
        summary="Computation graph of a workload",
        **operation(scope="read", answer={"type": "object"}, errors=(404,), **CONDITIONAL),
    )
    async def graph(request: Request, key: str) -> Response:
        body = await service.read(handler.get_graph, service, key)
        return tagged(request, body, etag(key, "graph"))

    @router.delete(
        "/{key}",
        summary="Delete a workload; refused while a tenant uses it",
        **operation(scope="admin", status=204, errors=(404, 409)),
    )
    async def delete(key: str) -> Response:
        await service.stored(handler.delete_workload, service, key)
        return Response(status_code=204)

    return router


async def _register_json(service: Service, raw: bytes, name: str) -> tuple[dict[str, Any], bool]:
    if _is_graph_file(raw):
        return await handler.register_graph(service, decode(raw, dict[str, Any]), name or None)
    body = decode(raw, RegisterBody)
    if isinstance(body.workload, str):
        return await handler.register_zoo(service, job_of(body.job()))
    if isinstance(body.graph, dict):
        return await handler.register_graph(service, body.graph, name or None)
    raise InputError(
        "the request names no model",
        expected="'workload' (a zoo name), 'graph' (a computation graph), or a file of `cotenant capture -o`",
    )


def _refuse_dimensions(**given: int | None) -> None:
    """Raise `InputError` for query keys that only an ONNX file has a use for: they would have no effect."""
    for key, value in given.items():
        if value is not None:
            raise InputError(
                f"query key {key} is for ONNX files only",
                expected="the options of a zoo model in the body; a captured graph has those of its capture",
                got=f"{key}={value}",
            )


def _is_graph_file(raw: bytes) -> bool:
    try:
        msgspec.json.decode(raw, type=GraphFile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False  # `decode` reports what is wrong with it
    return True


async def _register_form(
    service: Service, request: Request, name: str, batch_size: int | None, sequence_length: int | None
) -> tuple[dict[str, Any], bool]:
    async with request.form(max_files=1, max_fields=4) as form:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise InputError("the form has no file", expected="a field 'file' with an ONNX file")
        given = form.get("name")
        label = name or (given if isinstance(given, str) else "") or file.filename or "upload"
        return await handler.register_onnx(
            service, await file.read(), label[:200], batch_size, sequence_length
        )
