"""Every error as RFC 9457 problem details."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from msgspec import json
from starlette.exceptions import HTTPException

from profiling.errors import CotenantError, InputError
from serving.auth import authenticate
from serving.http import problem
from serving.middleware import headers_for


def install(app: FastAPI) -> None:
    """Answer errors of handlers, of parameters and of routing alike."""

    @app.exception_handler(CotenantError)
    async def _ours(request: Request, error: CotenantError) -> Response:
        return problem(error, request.url.path, headers_for(error))

    @app.exception_handler(RequestValidationError)
    async def _parameters(request: Request, error: RequestValidationError) -> Response:
        first: dict[str, Any] = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        return problem(
            InputError(where, expected=first["msg"], got=repr(first.get("input"))[:80]), request.url.path
        )

    @app.exception_handler(HTTPException)
    async def _routing(request: Request, error: HTTPException) -> Response:
        try:  # who may not ask anything does not learn which addresses there are
            await authenticate(request.app.state.service, request, "read")
        except CotenantError as refused:
            return problem(refused, request.url.path, headers_for(refused))
        title = HTTPStatus(error.status_code).phrase
        detail = {
            404: "there is nothing at this address; see /openapi.json",
            405: f"this address does not answer {request.method}; see the Allow header",
        }.get(error.status_code, str(error.detail))
        body = {
            "type": "about:blank", "title": title, "status": error.status_code, "detail": detail,
            "instance": request.url.path,
        }  # fmt: skip
        return Response(
            json.encode(body), error.status_code, error.headers, media_type="application/problem+json"
        )
