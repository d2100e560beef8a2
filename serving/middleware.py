"""The one door that every request comes through: identity, limits, deadline, headers, metrics, log."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from http.cookies import SimpleCookie
from typing import Any

import structlog

from profiling.errors import CotenantError, InputError, LimitError, UnavailableError
from serving import tracing
from serving.auth import COOKIE, LOCAL, Caller, allow, required_scope
from serving.http import DeadlineError, problem
from serving.limits import RateError
from serving.service import Service

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_LOGGER = logging.getLogger("cotenant.request")
log = structlog.get_logger("cotenant.request")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_SLOW_S = 1.0
_WATCHERS = ("/v1/health/", "/v2/health/", "/metrics")  # never shed: the operator must see an overload
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (
        b"content-security-policy",
        (
            b"default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
            b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        ),
    ),
]


class Door:
    """ASGI middleware around the whole application."""

    def __init__(self, app: Any, service: Service) -> None:
        self.app, self.service = app, service
        self.tracer = service.tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = _Exchange(self.service, scope, receive, send)
        with tracing.span(self.tracer, scope, exchange.request_id) as attributes:
            await exchange.run(self.app)
            attributes["http.response.status_code"] = exchange.status
            if (route := getattr(scope.get("route"), "path", None)) is not None:
                attributes["http.route"] = route


class _Exchange:
    """One request and its answer."""

    def __init__(self, service: Service, scope: Scope, receive: Receive, send: Send) -> None:
        self.service, self.scope, self._receive, self._send = service, scope, receive, send
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.path: str = scope["path"]
        asked = self.headers.get(b"x-request-id", b"").decode("latin-1")
        self.request_id = asked if _REQUEST_ID.fullmatch(asked) else uuid.uuid4().hex
        self.caller: Caller = LOCAL
        self.status = 0
        self.received = 0
        upload = self.path == "/v1/workloads"
        self.body_limit = service.config.upload_bytes if upload else service.config.body_bytes

    async def run(self, app: Any) -> None:
        started = time.perf_counter()
        service = self.service
        service.in_flight += 1
        service.metrics.requests_in_flight.inc()
        self.scope.setdefault("state", {})["request_id"] = self.request_id
        try:
            await self._guarded(app)
        except CotenantError as error:
            await self._refuse(error)
        except Exception as error:
            log.error("request failed", exc_info=error, request_id=self.request_id, path=self.path)
            await self._refuse(
                InternalError("the service failed on this request", hint="quote the request id")
            )
        finally:
            service.in_flight -= 1
            service.metrics.requests_in_flight.dec()
            self._record(time.perf_counter() - started)

    async def _guarded(self, app: Any) -> None:
        config = self.service.config
        if self.service.in_flight > config.requests_in_flight and not self.path.startswith(_WATCHERS):
            raise UnavailableError("the service is busy", hint="try again in a second")
        await self._identify()
        length = self.headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self.body_limit:
            raise LimitError(
                "body is too large", expected=f"at most {self.body_limit} bytes", got=int(length)
            )
        timeout_s = self._timeout_s()
        try:
            async with asyncio.timeout(timeout_s):
                await app(self.scope, self.receive, self.send)
        except TimeoutError:
            raise DeadlineError("no answer in time", expected=f"at most {timeout_s:g} s") from None

    async def _identify(self) -> None:
        service = self.service
        scope = required_scope(self.scope["method"], self.path)
        if service.tokens_required and scope is not None:
            header = self.headers.get(b"authorization", b"").decode("latin-1") or self._cookie()
            caller = service.authenticator.remembered(header)
            if caller is None:
                caller = await service.stored(service.authenticator.look_up, header)
            self.caller = caller
            allow(self.caller, scope)
        if service.config.rate_per_s and not self.path.startswith(_WATCHERS):
            client = self.scope.get("client") or ("", 0)
            service.rate.take(self.caller.name if self.caller is not LOCAL else client[0])
        self.scope["state"]["caller"] = self.caller

    def _cookie(self) -> str:
        """The dashboard's cookie as a header; only for reading, so that no other site can act through a browser."""
        if self.scope["method"] not in ("GET", "HEAD"):
            return ""
        cookies = SimpleCookie(self.headers.get(b"cookie", b"").decode("latin-1"))
        return f"Bearer {cookies[COOKIE].value}" if COOKIE in cookies else ""

    def _timeout_s(self) -> float:
        most = self.service.config.request_timeout_s
        asked = self.headers.get(b"x-timeout-s")
        if asked is None:
            return most
        try:
            value = float(asked)
        except ValueError:
            value = -1.0
        if not 0 < value < float("inf"):
            raise InputError(
                "X-Timeout-S is not a time", expected="seconds above 0", got=asked.decode("latin-1")
            )
        return min(value, most)

    async def receive(self) -> dict[str, Any]:
        message = await self._receive()
        if message["type"] == "http.request":
            self.received += len(message.get("body", b""))
            if self.received > self.body_limit:
                raise LimitError("body is too large", expected=f"at most {self.body_limit} bytes")
        return message

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = message.setdefault("headers", [])
            headers.append((b"x-request-id", self.request_id.encode()))
            headers.extend(_HEADERS)
        await self._send(message)

    async def _refuse(self, error: CotenantError) -> None:
        if self.status:  # the answer has begun; the broken connection is all that can be said
            return
        reason = {413: "body", 429: "rate", 401: "token", 403: "scope", 503: "busy", 504: "deadline"}
        if error.status in reason:
            self.service.metrics.refused.labels(reason[error.status]).inc()
        response = problem(error, self.path, headers_for(error))
        await response(self.scope, self._receive, self.send)  # type: ignore[arg-type]

    def _record(self, seconds: float) -> None:
        route = self.scope.get("route")
        template = getattr(route, "path", None) or "unmatched"
        method = self.scope["method"] if template != "unmatched" else "ANY"
        self.service.metrics.request_duration.labels(template, method, str(self.status)).observe(seconds)
        # Thousands of good requests a second are for the metrics; the log tells of what went wrong or took long.
        loud = self.status >= 400 or seconds >= _SLOW_S
        if loud or _LOGGER.isEnabledFor(logging.DEBUG):
            (log.info if loud else log.debug)(
                "request",
                request_id=self.request_id,
                method=self.scope["method"],
                path=self.path,
                status=self.status,
                duration_s=round(seconds, 6),
                caller=self.caller.name,
            )


class InternalError(CotenantError):
    """A fault of ours."""

    status = 500
    slug = "internal"
    title = "The service failed"


def headers_for(error: CotenantError) -> dict[str, str]:
    """The headers that go with an error's status."""
    if isinstance(error, RateError):
        return {"Retry-After": str(error.retry_after_s)}
    if error.status == 503:
        return {"Retry-After": "1"}
    if error.status == 401:
        return {"WWW-Authenticate": 'Bearer realm="cotenant"'}
    return {}
