"""Placements on the stored cluster: decide and reserve, confirm, end."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from serving.conditions import etag, tagged
from serving.handlers import placements as handler
from serving.handlers.reserving import Reserver
from serving.http import answer, once_of, read_body
from serving.openapi import CONDITIONAL, DEADLINE, IDEMPOTENCY_KEY, After, Limit, operation
from serving.routing import ServiceRoute
from serving.schemas import Page, PlacementBody, PlacementEntry, PlacementPage, PlacementState, ProgressBody
from serving.service import Service


def routes(service: Service) -> APIRouter:
    reserver = Reserver(service)
    router = APIRouter(prefix="/v1/placements", tags=["placements"], route_class=ServiceRoute)

    @router.post(
        "",
        summary="Choose a GPU of the stored cluster and reserve it",
        description="A decision not confirmed in time expires and frees its GPU.",
        **operation(
            scope="place",
            body=PlacementBody,
            answer=PlacementEntry,
            status=201,
            examples={
                "one job": {"job": "resnet18-cifar:batch_size=64", "job_id": "train-7", "iterations": 10000}
            },
            errors=(404, 409),
            parameters=[IDEMPOTENCY_KEY, DEADLINE],
            headers=("Location",),
        ),
    )
    async def decide(request: Request) -> Response:
        body = await read_body(request, PlacementBody)
        status, entry = await reserver.reserve(body, await once_of(request))
        return answer(entry, status, {"Location": f"/v1/placements/{entry['id']}"})

    @router.get("", summary="Placements, newest first", **operation(scope="read", answer=PlacementPage))
    async def listing(
        state: Annotated[PlacementState | None, Query()] = None,
        after: After = "0",
        limit: Limit = 50,
    ) -> Response:
        items = await service.read(handler.list_placements, service, state, int(after), limit + 1)
        return answer(Page.of(items, limit, lambda entry: str(entry["sequence"])))

    @router.get(
        "/{key}",
        summary="One placement",
        **operation(scope="read", answer=PlacementEntry, errors=(404,), **CONDITIONAL),
    )
    async def get(request: Request, key: str) -> Response:
        entry = await service.read(handler.get_placement, service, key)
        return tagged(request, entry, etag(entry["id"], entry["state"], entry["updated_at"], entry["stale"]))

    @router.post(
        "/{key}/confirm",
        summary="Confirm that the job started",
        **operation(scope="place", answer=PlacementEntry, errors=(404, 409)),
    )
    async def confirm(key: str) -> Response:
        return answer(await service.stored(handler.change, service, key, "confirmed"))

    @router.post(
        "/{key}/end",
        summary="End the placement: the job finished or will not start",
        **operation(scope="place", answer=PlacementEntry, errors=(404, 409)),
    )
    async def end(key: str) -> Response:
        return answer(await service.stored(handler.change, service, key, "ended"))

    @router.post(
        "/{key}/progress",
        summary="Report the iterations left",
        **operation(
            scope="place",
            body=ProgressBody,
            answer=PlacementEntry,
            examples={"half way": {"iterations_left": 5000}},
            errors=(404, 409),
        ),
    )
    async def progress(request: Request, key: str) -> Response:
        body = await read_body(request, ProgressBody)
        return answer(await service.stored(handler.progress, service, key, body.iterations_left))

    return router
