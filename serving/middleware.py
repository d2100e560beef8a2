"""ASGI middleware around every request: request id, origin checks, body limits, metrics, logging."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

import structlog
from fastapi import Response

from profiling.errors import CotenantError, LimitError, UnavailableError
from serving import tracing
from serving.auth import UNKNOWN, ForbiddenError
from serving.delay import ARRIVED, SINCE
from serving.http import MalformedError, MediaTypeError, MisdirectedError, is_json, problem
from serving.lanes import CALLER, OverloadError
from serving.limits import RateError
from serving.listener import CALLER_LEFT
from serving.service import Service
from serving.store import StoreError

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_LOGGER = logging.getLogger("cotenant.request")
log = structlog.get_logger("cotenant.request")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_SLOW_S = 1.0
_LEFT = 499  # the caller left before the response; nginx's status for it
_SMALL_BODIES = ("/login", "/logout")
_SMALL_BYTES = 4096
_LARGE_BYTES = 2**18  # of an answer; smaller ones of all connections together are little
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),  # with `no-referrer`, browsers send `Origin: null` with every form
    (b"cross-origin-resource-policy", b"same-origin"),
    (
        b"content-security-policy",
        (
            b"default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
            b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        ),
    ),
]


class RequestMiddleware:
    """ASGI middleware around the whole application."""

    def __init__(self, app: Any, service: Service) -> None:
        self.app, self.service = app, service
        self.tracer = service.tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        arrived = scope.pop(ARRIVED, None)  # of the listener's own scope, which it looks at again
        if arrived is not None:
            self.service.delay.begun(arrived)
            SINCE.set(arrived)
        if scope["method"] == "HEAD":  # answered like GET; the server drops the body
            scope = {**scope, "method": "GET"}
        exchange = _Exchange(self.service, scope, receive, send)
        with tracing.span(self.tracer, scope, exchange.request_id) as attributes:
            await exchange.run(self.app)
            attributes["http.response.status_code"] = exchange.status
            if (route := getattr(scope.get("route"), "path", None)) is not None:
                attributes["http.route"] = route


class _Exchange:
    """One request and its response."""

    def __init__(self, service: Service, scope: Scope, receive: Receive, send: Send) -> None:
        self.service, self.scope, self._receive, self._send = service, scope, receive, send
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.path: str = scope["path"]
        asked = self.headers.get(b"x-request-id", b"").decode("latin-1")
        self.request_id = asked if _REQUEST_ID.fullmatch(asked) else uuid.uuid4().hex
        self.status = 0
        self.received = 0
        self.unread = False  # refused an answer of the application in its place
        config = service.config
        # JSON is read in this process, files in their own. Of several types the handler reads the first one, and
        # `headers` has the last.
        uploaded = self.path == "/v1/workloads" and not any(
            name == b"content-type" and is_json(value.decode("latin-1")) for name, value in scope["headers"]
        )
        self.body_limit = config.upload_bytes if uploaded else config.body_bytes
        if self.path in _SMALL_BODIES:
            self.body_limit = _SMALL_BYTES

    async def run(self, app: Any) -> None:
        started = time.perf_counter()
        service = self.service
        service.metrics.requests_in_flight.inc()
        state = self.scope.setdefault("state", {})
        state["request_id"], state["caller"] = self.request_id, UNKNOWN
        try:
            self._check()
            await app(self.scope, self.receive, self.send)
        except CotenantError as error:
            await self._refuse(error)
        except asyncio.CancelledError as cancelled:
            # Passed on, uvicorn would log it as our failure.
            if CALLER_LEFT in cancelled.args:
                self.status = self.status or _LEFT
            else:  # by uvicorn, once `--drain` is over
                await self._refuse(UnavailableError("the service is stopping", hint="try again"))
        except Exception as error:
            log.error("request failed", exc_info=error, request_id=self.request_id, path=self.path)
            service.metrics.faults.inc()
            await self._refuse(InternalError("internal error", hint="quote the request id"))
        finally:
            service.buffered_bytes -= self.received
            service.metrics.requests_in_flight.dec()
            self._record(time.perf_counter() - started)

    def _check(self) -> None:
        """Check the request's origin and announced body. Raises a `CotenantError`."""
        if "\ufffd" in self.path:
            _check_utf8(self.scope.get("raw_path", b""))
        proxies, client = self.service.proxies, self.scope.get("client")
        if proxies and client and proxies.trusts(client[0]):
            client = self._believe_proxy(client)
        self._check_origin()
        if self.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise MediaTypeError(
                "compressed request bodies are not supported",
                expected="no Content-Encoding",
                got=self.headers[b"content-encoding"].decode("latin-1")[:40],
            )
        length = self.headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self.body_limit:
            raise LimitError(
                "body is too large", expected=f"at most {self.body_limit} bytes", got=int(length)
            )
        caller = self.headers.get(b"authorization")
        CALLER.set(str(hash(caller)) if caller else str(client[0] if client else ""))

    def _believe_proxy(self, client: tuple[str, int]) -> tuple[str, int]:
        """Apply the address and scheme from a trusted proxy's headers. Returns the client."""
        lines = [value for name, value in self.scope["headers"] if name == b"x-forwarded-for"]
        forwarded = self.service.proxies.client_of(b",".join(lines).decode("latin-1"))
        if forwarded:
            client = self.scope["client"] = (forwarded[:64], client[1])
        if self.headers.get(b"x-forwarded-proto", b"").strip().lower() == b"https":
            self.scope["scheme"] = "https"
        return client

    def _check_origin(self) -> None:
        """Refuse unknown host names (DNS rebinding) and cross-site requests.

        Needed only without tokens and for the dashboard's cookie, because browsers never send a bearer token
        by themselves.
        """
        hosts = sum(name == b"host" for name, _ in self.scope["headers"])
        if hosts > 1 or (hosts == 0 and self.scope.get("http_version") == "1.1"):
            raise MalformedError("invalid request head", expected="one Host header", got=f"{hosts} of them")
        host = self.headers.get(b"host", b"").decode("latin-1")
        if not self.service.hosts.knows(host):
            raise MisdirectedError(
                "unknown Host", expected="an address or name of this service", got=repr(host[:80]),
                hint="name it with --allowed-host",
            )  # fmt: skip
        if self.scope["method"] in ("GET", "HEAD", "OPTIONS") or b"authorization" in self.headers:
            return
        # What the browser says itself holds behind a proxy that changes Host, too. Old ones name the origin only.
        site, origin = self.headers.get(b"sec-fetch-site"), self.headers.get(b"origin")
        if site is not None:
            foreign = site not in (b"none", b"same-origin")
        else:
            foreign = origin is not None and _name_of(origin.decode("latin-1")) != host.lower()
        if foreign:
            raise ForbiddenError("cross-site request refused", expected="the same origin, or a bearer token")

    async def receive(self) -> dict[str, Any]:
        message = await self._receive()
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self.received += size
            self.service.buffered_bytes += size
            if self.received > self.body_limit:
                raise LimitError("body is too large", expected=f"at most {self.body_limit} bytes")
            if self.service.buffered_bytes > self.service.config.buffer_bytes:
                raise OverloadError("too many large bodies at once", hint="try again in a second")
        return message

    async def send(self, message: dict[str, Any]) -> None:
        if self.unread:
            return
        if message["type"] == "http.response.start":
            if self._too_much_unread(message):
                await self._refuse(OverloadError("too many large answers wait to be read", hint="read them"))
                self.unread = True
                return
            self.status = message["status"]
            headers = message.setdefault("headers", [])
            headers.append((b"x-request-id", self.request_id.encode()))
            headers.extend(_HEADERS)
        await self._send(message)

    def _too_much_unread(self, start: dict[str, Any]) -> bool:
        """Whether a large answer must not be added to those that their callers have not read yet.

        One that tells of a write (201) is sent all the same.
        """
        size = int(dict(start.get("headers", ())).get(b"content-length", 0))
        if size <= _LARGE_BYTES or start["status"] != 200:
            return False
        return self.service.listener.unread_bytes() > self.service.config.buffer_bytes

    async def _refuse(self, error: CotenantError) -> None:
        # The status has been sent, so closing the connection is the only way to signal the error.
        if self.status:
            return
        response = refusal(error, self.scope)
        await response(self.scope, self._receive, self.send)  # type: ignore[arg-type]

    def _record(self, seconds: float) -> None:
        route = self.scope.get("route")
        template = getattr(route, "path", None) or "unmatched"
        method = "ANY" if template == "unmatched" else self.scope["method"]
        if method not in (getattr(route, "methods", None) or ("ANY",)):
            method = "other"  # any word is a method, and every label is kept for good
        metrics, caller = self.service.metrics, self.scope["state"]["caller"].name
        metrics.request_duration.labels(template, method, str(self.status)).observe(seconds)
        error: CotenantError | None = self.scope["state"].get("error")
        if self.status in _REASONS and not template.endswith("/ready"):  # "not ready" is an answer
            reason = "store" if isinstance(error, StoreError) else _REASONS[self.status]
            metrics.refused.labels(reason).inc()
        # Log only failed or slow requests; metrics cover thousands of good ones per second.
        loud = self.status >= 400 or seconds >= _SLOW_S
        if loud or _LOGGER.isEnabledFor(logging.DEBUG):
            (log.info if loud else log.debug)(
                "request",
                request_id=self.request_id,
                method=self.scope["method"],
                path=self.path,
                status=self.status,
                duration_s=round(seconds, 6),
                caller=caller,
                # Of a refusal for the service's own sake; others may repeat what the caller sent.
                **({"detail": error.message} if error is not None and self.status >= 500 else {}),
            )


def _check_utf8(path: bytes) -> None:
    """Raise `MalformedError` if a percent-encoded path is not UTF-8: the server reads different ones as the same name."""
    try:
        unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        got = path[:80].decode("latin-1")
        raise MalformedError("the URL is not text", expected="UTF-8, percent-encoded", got=got) from None


def _name_of(origin: str) -> str | None:
    """Host and port of an `Origin`; None if invalid."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


_REASONS = {
    413: "body",
    429: "rate",
    401: "token",
    403: "scope",
    503: "busy",
    504: "deadline",
    408: "slow_body",
}


class InternalError(CotenantError):
    """An internal error."""

    status = 500
    slug = "internal"
    title = "The service failed"


def refusal(error: CotenantError, scope: MutableMapping[str, Any]) -> Response:
    """`error` as the response to a request, whose record will mention it."""
    scope["state"]["error"] = error
    return problem(error, scope["path"], headers_for(error))


def headers_for(error: CotenantError) -> dict[str, str]:
    """The headers for an error's status."""
    if isinstance(error, (RateError, OverloadError)):
        return {"Retry-After": str(error.retry_after_s)}
    if error.status == 503:
        return {"Retry-After": "1"}
    if error.status == 401:
        return {"WWW-Authenticate": 'Bearer realm="cotenant"'}
    if error.status in (408, 413):
        return {"Connection": "close"}  # the rest of the body is not read
    return {}
