"""Every error as RFC 9457 problem details."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route

from profiling.errors import CotenantError, InputError, UnknownNameError, shortened
from serving.auth import authenticate
from serving.http import MalformedError, problem
from serving.middleware import refusal

_SHOWN = 80


class MethodError(CotenantError):
    """The URL exists, but not with this method."""

    status = 405
    slug = "method-not-allowed"
    title = "Method is not allowed"


def install(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Handle errors from handlers, parameters and routing.

    Args:
        routes: all routes of the application, to find the methods of a URL.
    """

    @app.exception_handler(CotenantError)
    async def _ours(request: Request, error: CotenantError) -> Response:
        return refusal(error, request.scope)

    @app.exception_handler(RequestValidationError)
    async def _parameters(request: Request, error: RequestValidationError) -> Response:
        return problem(of_parameters(error), request.scope["path"])

    @app.exception_handler(HTTPException)
    async def _routing(request: Request, error: HTTPException) -> Response:
        allowed, headers = "", dict(error.headers or {})
        if error.status_code in (404, 405):
            try:  # callers without access must not learn which URLs exist
                await authenticate(request.app.state.service, request, "read")
            except CotenantError as refused:
                return refusal(refused, request.scope)
            # The exception knows the methods of only one of several routes.
            allowed = ", ".join(_methods(routes, request.scope["path"]))
            headers |= {"Allow": allowed} if error.status_code == 405 else {}
        told = _explained(request, error, allowed)
        return problem(told, request.scope["path"], headers)


def of_parameters(error: RequestValidationError) -> InputError:
    """FastAPI's error about a request's parameters as one of ours."""
    first: dict[str, Any] = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    expected = re.sub(r"^\w+ should (be |have )?|, unable to .*", "", first["msg"])
    return InputError(where, expected=expected, got=shortened(repr(first.get("input")), _SHOWN))


def _explained(request: Request, error: HTTPException, allowed: str) -> CotenantError:
    """An error of the framework as one of ours."""
    if error.status_code == 404:
        return UnknownNameError(
            "no such URL",
            expected="one listed in /openapi.json",
            got=shortened(request.scope["path"], _SHOWN),
        )
    if error.status_code == 405:
        return MethodError(f"{request.method} is not allowed here", expected=allowed, got=request.method)
    return MalformedError(
        "the request cannot be read",
        expected="a well-formed form or body",
        got=shortened(error.detail, _SHOWN),
    )


def _methods(routes: Sequence[BaseRoute], path: str) -> list[str]:
    """The methods allowed at a URL."""
    here = (route for route in routes if isinstance(route, Route) and route.path_regex.match(path))
    methods = {method for route in here for method in route.methods or ()}
    return sorted(methods | {"HEAD"} if "GET" in methods else methods)
