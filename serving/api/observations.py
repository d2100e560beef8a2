"""Feedback: observed step times, how far predictions were off, and sets that ran out of memory."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from serving.feedback_schemas import ObservationPage, ObservationsAnswer, ObservationsBody
from serving.handlers import observations as handler
from serving.http import answer, once_of, read_body
from serving.openapi import DEADLINE, IDEMPOTENCY_KEY, After, Limit, operation
from serving.routing import ServiceRoute
from serving.schemas import Page
from serving.service import Service

_EXAMPLE = {
    "observations": [
        {
            "of": {"device": "v100", "jobs": ["resnet18-cifar:batch_size=64", "lstm-wikitext2"]},
            "member": 0,
            "step_time_s": 0.041,
        }
    ]
}
_Number = Annotated[int, Path(ge=1, le=2**31 - 1, description="`id` of the observation")]
_RAN_OUT = {
    "observations": [
        {
            "of": {"device": "v100", "jobs": ["gpt-125m:memory_bytes=7.5e9", "gpt-125m:memory_bytes=7.5e9"]},
            "out_of_memory": True,
        }
    ]
}


def routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/observations", tags=["observations"], route_class=ServiceRoute)

    @router.post(
        "",
        summary="Report observed step times, or sets that ran out of memory",
        **operation(
            scope="place",
            body=ObservationsBody, answer=ObservationsAnswer, status=201, examples={"one": _EXAMPLE, "out of memory": _RAN_OUT}, errors=(404,),
            parameters=[IDEMPOTENCY_KEY, DEADLINE],
        ),
    )  # fmt: skip
    async def record(request: Request) -> Response:
        body = await read_body(request, ObservationsBody, service.batcher.off_loop)
        status, result = await handler.record(service, body, await once_of(request))
        return answer(result, status)

    @router.get("", summary="Observations, newest first", **operation(scope="read", answer=ObservationPage))
    async def listing(after: After = "0", limit: Limit = 50) -> Response:
        items = await service.read(handler.list_observations, service, int(after), limit + 1)
        return answer(Page.of(items, limit, lambda entry: str(entry["id"])))

    @router.delete(
        "/{number}",
        summary="Withdraw an observation",
        description="It is deleted for good; answers are corrected by the others only, within seconds",
        **operation(scope="admin", status=204, errors=(404,)),
    )
    async def withdraw(number: _Number) -> Response:
        await service.stored(handler.withdraw_observation, service, number)
        return Response(status_code=204)

    return router
