"""GPU types of the catalogue."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from profiling.devices import DeviceSpec, get_device, list_devices
from serving.conditions import etag, tagged
from serving.openapi import CONDITIONAL, operation
from serving.routing import ServiceRoute
from serving.service import Service

# Answers state every field, those with a default too.
_DEVICE = {
    **msgspec.json.schema(DeviceSpec)["$defs"]["DeviceSpec"],
    "description": "A type of GPU, or a CPU, by its public specifications. Rates are peaks, dense, in FLOP/s; 0 "
    "without such a unit.",
    "required": [field.name for field in fields(DeviceSpec)],
}


def routes(_service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/devices", tags=["devices"], route_class=ServiceRoute)

    @router.get(
        "",
        summary="All GPU types",
        **operation(
            scope="read",
            answer={"type": "object", "required": ["devices"], "properties": {"devices": {"type": "array", "items": _DEVICE}}},
            **CONDITIONAL,
        ),
    )  # fmt: skip
    async def listing(request: Request) -> Response:
        devices: list[dict[str, Any]] = [asdict(d) for d in list_devices()]
        return tagged(request, {"devices": devices}, etag(devices))

    @router.get(
        "/{name}",
        summary="One GPU type",
        **operation(scope="read", answer=_DEVICE, errors=(404,), **CONDITIONAL),
    )
    async def get(request: Request, name: str) -> Response:
        device = asdict(get_device(name))
        return tagged(request, device, etag(device))

    return router
