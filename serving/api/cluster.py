"""The stored cluster: read, replace, change by node; versioned, compare-and-set by `If-Match`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from profiling.devices import get_device
from profiling.errors import InputError
from scheduling.core.snapshot import ClusterSnapshot
from serving.handlers import cluster as handler
from serving.handlers.jobs import admit
from serving.handlers.place import check_size
from serving.http import answer, if_match, not_modified, read_body
from serving.openapi import header, operation
from serving.schemas import ClusterAnswer, ClusterBody, NodeAnswer, NodeBody, VersionAnswer, plain
from serving.service import Service

_MATCH = [header("If-Match", 'Version that the change is meant for, such as "7"', {"type": "string", "pattern": '^"?[0-9]{1,15}"?$'})]  # fmt: skip
_EXAMPLE = {
    "nodes": [{"name": "node-a", "gpus": [{"id": "0", "device": "v100"}, {"id": "1", "device": "v100"}]}]
}


def routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/cluster", tags=["cluster"])

    @router.get(
        "", summary="Nodes, GPUs and tenants", **operation(answer=ClusterAnswer, also={304: "Not changed"})
    )
    async def read(request: Request) -> Response:
        snapshot, version = await service.stored(handler.stored_snapshot, service)
        if not_modified(request, _tag(version)):
            return Response(None, 304, {"ETag": _tag(version)})
        return _versioned({"version": version, "cluster": snapshot.to_mapping()}, version)

    @router.put(
        "",
        summary="Replace the whole cluster, tenants too",
        **operation(
            body=ClusterBody,
            answer=VersionAnswer,
            examples={"one node": _EXAMPLE},
            errors=(404, 412),
            parameters=_MATCH,
        ),
    )
    async def replace(request: Request) -> Response:
        snapshot = await _snapshot(service, plain(await read_body(request, ClusterBody)))
        version = await service.stored(handler.replace_cluster, service, snapshot, if_match(request))
        return _versioned({"version": version}, version)

    @router.get("/nodes/{name}", summary="One node", **operation(answer=NodeAnswer, errors=(404,)))
    async def node(request: Request, name: str) -> Response:
        body, version = await service.stored(handler.read_node, service, name)
        return _versioned({"version": version, "node": body}, version)

    @router.put(
        "/nodes/{name}",
        summary="Add a node, or replace it with its tenants",
        **operation(
            body=NodeBody,
            answer=VersionAnswer,
            also={201: "The node is new"},
            examples={"two GPUs": {"gpus": _EXAMPLE["nodes"][0]["gpus"]}},
            errors=(404, 412),
            parameters=_MATCH,
        ),
    )
    async def put(request: Request, name: str) -> Response:
        body = plain(await read_body(request, NodeBody))
        if body.get("name", name) != name or body.get("count", 1) != 1:
            raise InputError("body is another node", expected=f"name {name!r} or none, and no count")
        snapshot = await _snapshot(service, {"nodes": [{**body, "name": name}]})
        version, new = await service.stored(handler.put_node, service, snapshot.nodes[0], if_match(request))
        return _versioned({"version": version}, version, 201 if new else 200)

    @router.delete(
        "/nodes/{name}",
        summary="Take a node out",
        **operation(answer=VersionAnswer, errors=(404, 412), parameters=_MATCH),
    )
    async def delete(request: Request, name: str) -> Response:
        version = await service.stored(handler.delete_node, service, name, if_match(request))
        return _versioned({"version": version}, version)

    return router


async def _snapshot(service: Service, body: dict[str, Any]) -> ClusterSnapshot:
    snapshot = ClusterSnapshot.from_mapping(body)
    check_size(snapshot, service.config.cluster_gpus)
    devices = {gpu.device for _, gpu in snapshot.gpus()}
    for device in devices:
        get_device(device)
    await admit(service, {t.job for _, gpu in snapshot.gpus() for t in gpu.tenants}, devices)
    return snapshot


def _tag(version: int) -> str:
    return f'"{version}"'


def _versioned(value: dict[str, Any], version: int, status: int = 200) -> Response:
    return answer(value, status, {"ETag": _tag(version), "Cache-Control": "no-cache"})
