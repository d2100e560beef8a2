"""The stored cluster: read it, and change its inventory as a whole or by node.

It is versioned, with compare-and-set by `If-Match`.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from profiling.devices import get_device
from profiling.errors import InputError
from serving.audit import Entry
from serving.batching import INLINE_GPUS
from serving.cluster_state import to_mapping
from serving.conditions import Condition, not_modified, tagged
from serving.feedback_schemas import GpuSeen, TenantsAnswer
from serving.handlers import cluster as handler
from serving.handlers.jobs import admit
from serving.handlers.lengths import fill_lengths
from serving.handlers.tenants import tell_gpu, tenants_of
from serving.handlers.versions import Change
from serving.http import answer, read_body
from serving.openapi import CONDITIONAL, header, operation
from serving.routing import ServiceRoute
from serving.schemas import ClusterAnswer, ClusterBody, NodeAnswer, NodeBody, VersionAnswer
from serving.service import Service

_CONDITIONS = [
    header("If-Match", 'Tags of which the stored state must have one: its ETag, or its version, such as "7"; `*`: it must exist'),
    header("If-None-Match", "Tags of which the stored state must have none; `*`: it must not exist"),
]  # fmt: skip
_Replace = Annotated[
    bool, Query(description="Replace the tenants too; placements of tenants not in the body are ended")
]
_Valid = Annotated[
    float | None,
    Query(
        gt=0,
        allow_inf_nan=False,
        description="Seconds within which the caller will store the cluster again. If it does not, the stored one is "
        "outdated: `GET` and `PUT /v1/cluster/tenants` answer 409, and the dashboard and a metric report it",
    ),
]
_JobId = Annotated[
    str | None, Query(max_length=200, description="Of a tenant; a pod of Kubernetes is NAMESPACE/NAME/UID")
]
_PlacementId = Annotated[str | None, Query(max_length=32, description="Instead of job_id")]
_NewName = Annotated[str, Path(max_length=200)]
_EXAMPLE = {
    "nodes": [{"name": "node-a", "gpus": [{"id": "0", "device": "v100"}, {"id": "1", "device": "v100"}]}]
}


def routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/cluster", tags=["cluster"], route_class=ServiceRoute)

    @router.get(
        "",
        summary="Nodes, GPUs and tenants",
        **operation(scope="read", answer=ClusterAnswer, **CONDITIONAL),
    )
    async def read(request: Request) -> Response:
        state = await service.read(service.cluster.current)
        tag = Change(state.version, state.changes).tag
        if not_modified(request, tag):
            return tagged(request, None, tag)
        body = await service.read(to_mapping, state)
        described = {"version": state.version, "valid_until": state.valid_until, "cluster": body}
        return tagged(request, described, tag)

    @router.get(
        "/tenants",
        summary="The set that a job runs in",
        description="What its measured step times are observations of: copy `of` and `member` into "
        "`POST /v1/observations` if they are the same before and after the measurement",
        **operation(scope="read", answer=TenantsAnswer, errors=(404, 409)),
    )
    async def tenants(job_id: _JobId = None, placement_id: _PlacementId = None) -> Response:
        return answer({"tenants": await service.read(tenants_of, service, job_id, placement_id)})

    @router.put(
        "/tenants",
        summary="Say which GPU a job sees",
        description="By the UUID that the driver gives the GPU or slice. Where the stored cluster only assumes which "
        "GPU of a node its jobs are on (`tenants_assumed`), jobs with the same one share it. Answers like `GET`",
        **operation(
            scope="place",
            body=GpuSeen,
            answer=TenantsAnswer,
            examples={"a GPU": {"gpu_uuid": "GPU-5a3c1b9e-7d0f-4c2a-9b1e-2f6d8c4a0e17"}},
            errors=(404, 409),
        ),
    )
    async def see(request: Request, job_id: _JobId = None, placement_id: _PlacementId = None) -> Response:
        body = await read_body(request, GpuSeen)
        return answer(
            {"tenants": await service.stored(tell_gpu, service, job_id, placement_id, body.gpu_uuid)}
        )

    @router.put(
        "",
        summary="Replace the inventory of nodes and GPUs",
        description="Stored tenants stay where they are. A new GPU may include tenants. Changing the "
        "tenants of a stored GPU, or removing a GPU that has tenants, is refused (409) unless "
        "`replace_tenants=true`",
        **operation(
            scope="admin",
            body=ClusterBody,
            answer=VersionAnswer,
            examples={"one node": _EXAMPLE},
            errors=(404, 409, 412),
            parameters=_CONDITIONS,
            headers=("ETag",),
        ),
    )
    async def replace(
        request: Request, replace_tenants: _Replace = False, valid_s: _Valid = None
    ) -> Response:
        inventory = await _inventory(service, await read_body(request, ClusterBody, service.batcher.off_loop))
        change = await service.stored(
            handler.replace_cluster, service, inventory, Condition.of(request), replace_tenants, valid_s
        )
        return _changed(change)

    @router.get(
        "/nodes/{name}",
        summary="One node",
        **operation(scope="read", answer=NodeAnswer, errors=(404,), **CONDITIONAL),
    )
    async def node(request: Request, name: str) -> Response:
        body, change = await service.read(handler.read_node, service, name)
        return tagged(request, {"version": change.version, "node": body}, change.tag)

    @router.put(
        "/nodes/{name}",
        summary="Add or update a node; also serves as its heartbeat",
        **operation(
            scope="admin",
            body=NodeBody,
            answer=VersionAnswer,
            also={201: "The node was added"},
            examples={"two GPUs": {"gpus": _EXAMPLE["nodes"][0]["gpus"]}},
            errors=(404, 409, 412),
            parameters=_CONDITIONS,
            headers=("ETag",),
        ),
    )
    async def put(request: Request, name: _NewName, replace_tenants: _Replace = False) -> Response:
        body = await read_body(request, NodeBody)
        if (body.name or name) != name or (body.count or 1) != 1:
            raise InputError(
                "the body names another node", expected=f"name {name!r} or no name, and no count"
            )
        body.name = name
        inventory = await _inventory(service, ClusterBody([body]))
        change, new = await service.stored(
            handler.put_node, service, inventory, Condition.of(request), replace_tenants, Entry.of(request)
        )
        return _changed(change, 201 if new else 200)

    @router.delete(
        "/nodes/{name}",
        summary="Remove a node",
        **operation(
            scope="admin",
            answer=VersionAnswer,
            errors=(404, 409, 412),
            parameters=_CONDITIONS,
            headers=("ETag",),
        ),
    )
    async def delete(request: Request, name: str, replace_tenants: _Replace = False) -> Response:
        change = await service.stored(
            handler.delete_node, service, name, Condition.of(request), replace_tenants
        )
        return _changed(change)

    return router


async def _inventory(service: Service, body: ClusterBody) -> handler.Inventory:
    gpus = handler.check_body(body, service.config)
    await fill_lengths(service, body, refuse=True)
    if gpus <= INLINE_GPUS:
        inventory = handler.read_inventory(body)
    else:
        inventory = await service.batcher.bulk.run(handler.read_inventory, body)
    devices = {gpu.device for _, gpu in inventory.snapshot.gpus()}
    for device in devices:
        get_device(device)
    await admit(service, {t.job for _, gpu in inventory.snapshot.gpus() for t in gpu.tenants}, devices)
    return inventory


def _changed(change: Change, status: int = 200) -> Response:
    return answer({"version": change.version}, status, {"ETag": change.tag, "Cache-Control": "no-cache"})
