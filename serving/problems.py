"""Every error as RFC 9457 problem details."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from msgspec import json
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route

from profiling.errors import CotenantError, InputError
from serving.auth import authenticate
from serving.http import problem
from serving.middleware import headers_for


def install(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Handle errors from handlers, parameters and routing.

    Args:
        routes: all routes of the application, to find the methods of a URL.
    """

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
        try:  # callers without access must not learn which URLs exist
            await authenticate(request.app.state.service, request, "read")
        except CotenantError as refused:
            return problem(refused, request.url.path, headers_for(refused))
        title = HTTPStatus(error.status_code).phrase
        detail = {
            404: "no such URL; see /openapi.json",
            405: f"{request.method} is not allowed here; see the Allow header",
        }.get(error.status_code, str(error.detail))
        headers = error.headers
        if error.status_code == 405:  # the exception knows the methods of only one of several routes
            headers = {"Allow": ", ".join(_methods(routes, request.url.path))}
        body = {
            "type": "about:blank", "title": title, "status": error.status_code, "detail": detail,
            "instance": request.url.path,
        }  # fmt: skip
        return Response(json.encode(body), error.status_code, headers, media_type="application/problem+json")


def _methods(routes: Sequence[BaseRoute], path: str) -> list[str]:
    """The methods allowed at a URL."""
    here = (route for route in routes if isinstance(route, Route) and route.path_regex.match(path))
    methods = {method for route in here for method in route.methods or ()}
    return sorted(methods | {"HEAD"} if "GET" in methods else methods)
