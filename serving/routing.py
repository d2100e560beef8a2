"""Steps between routing and the handler: authentication, authorisation, body, slot, deadline.

Every route declares its scope with `operation(scope=...)`; without one, the application does not start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from profiling.errors import CotenantError, InputError
from serving.auth import SCOPES, authenticate
from serving.http import BodyTimeoutError, DeadlineError
from serving.limits import Slots
from serving.listener import WATCHED
from serving.service import Service

SCOPE = "x-cotenant-scope"  # in a route's OpenAPI object
OPEN = "open"
WATCH = "watch"  # open, and answered even under overload
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class ServiceRoute(APIRoute):
    """A route with a scope: one of `SCOPES`, `open` or `watch`.

    Attributes:
        only_known_keys: whether a query key that the route does not know, or that is repeated, is an error.
    """

    only_known_keys = True

    def get_route_handler(self) -> Handler:
        scope = (self.openapi_extra or {}).get(SCOPE)
        if scope not in (*SCOPES, OPEN, WATCH):
            raise InputError(
                f"route {self.path} declares no scope", expected="operation(scope=...)", got=scope
            )
        handler = self.inner_handler()
        if scope == WATCH:
            return handler

        def slots_of(service: Service) -> Slots:
            if self.path in WATCHED:
                return Slots(1)
            return service.open_slots if scope == OPEN else service.slots

        async def guarded(request: Request) -> Response:
            service: Service = request.app.state.service
            await authenticate(service, request, None if scope == OPEN else scope)
            if self.only_known_keys and scope != OPEN and request.scope["query_string"]:
                self._check_query(request)
            timeout_s = _timeout_s(request, service.config.request_timeout_s)
            if request.method not in ("GET", "HEAD"):
                try:
                    async with asyncio.timeout(service.config.body_s):
                        await request.body()
                except TimeoutError:
                    raise BodyTimeoutError(
                        "the body did not arrive in time", expected=f"at most {service.config.body_s:g} s"
                    ) from None
            with slots_of(service).slot():
                try:
                    async with asyncio.timeout(timeout_s):
                        return await handler(request)
                except TimeoutError:
                    raise DeadlineError("no answer in time", expected=f"at most {timeout_s:g} s") from None

        async def audited(request: Request) -> Response:
            from serving import audit

            status = 500
            try:
                response = await guarded(request)
                status = response.status_code
                return response
            except CotenantError as error:
                status = error.status
                raise
            except HTTPException as error:
                status = error.status_code
                raise
            except RequestValidationError:
                status = InputError.status
                raise
            finally:
                await audit.record(request.app.state.service, request, status)

        return audited if scope == "admin" and "GET" not in (self.methods or ()) else guarded

    def _check_query(self, request: Request) -> None:
        """Raise `InputError`: what a misspelt key asks for would not be done, and of two values only one would count."""
        known = sorted(field.alias for field in self.dependant.query_params)
        given = [key for key, _ in request.query_params.multi_items()]
        for key in given:
            if key not in known:
                raise InputError(
                    "the URL has an unknown query key",
                    expected="one of " + ", ".join(known) if known else "no query",
                    got=repr(key[:80]),
                )
            if given.count(key) > 1:
                raise InputError(
                    f"query key {key} is repeated",
                    expected="each key once",
                    got=f"{given.count(key)} of them",
                )

    def inner_handler(self) -> Handler:
        """The endpoint, with parameters parsed by FastAPI."""
        return super().get_route_handler()


class DirectRoute(ServiceRoute):
    """A route whose endpoint takes only the request; skipping parameter parsing halves the time."""

    def inner_handler(self) -> Handler:
        return self.endpoint


def _timeout_s(request: Request, most_s: float) -> float:
    asked = request.headers.get("x-timeout-s")
    if asked is None:
        return most_s
    try:
        value = float(asked)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise InputError("X-Timeout-S is not a duration", expected="seconds above 0", got=asked)
    return min(value, most_s)
