"""The listener: uvicorn's httptools protocol with bounds on heads, bodies, idle connections and time in the queue.

uvicorn bounds a request's head only with its slower h11 parser, and neither it, hypercorn nor granian bounds connections
by address or sheds by the time that requests wait for the event loop; `http=` takes a protocol class, so that is done here.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    from serving.config import ServiceConfig
    from serving.metrics import Metrics

WATCHED = ("/v1/health/", "/v2/health/", "/metrics")  # never shed: operators must see an overload
ARRIVED = "cotenant.arrived"  # in the scope of a request that waits for its handler: when it arrived
_WATCHED = tuple(path.encode() for path in WATCHED)
_SWEEP_S = 0.5


class Phase(Enum):
    """What a connection is waiting for."""

    HEAD = "head"
    BODY = "body"
    ANSWER = "answer"
    IDLE = "idle"


class DelayLimit:
    """How many requests may wait for the event loop: halved-in-part while they wait too long, raised slowly otherwise.

    Additive increase and multiplicative decrease, as TCP does (Chiu and Jain, 1989), on the delay between a request's
    head and the start of its handler. A request that would exceed the limit is shed.
    """

    FLOOR, CEILING, STEP, PERIOD_S = 16.0, 4096.0, 8.0, 0.05

    def __init__(self, target_s: float) -> None:
        self.target_s = target_s
        self.limit = self.CEILING
        self.waiting = 0
        self._peak, self._worst_s = 0, 0.0

    def admit(self) -> bool:
        """Count one request in, or refuse it."""
        if self.waiting >= self.limit:
            self._peak = max(self._peak, self.waiting)
            return False
        self.waiting += 1
        self._peak = max(self._peak, self.waiting)
        return True

    def begun(self, arrived: float) -> None:
        """A request that was admitted at `arrived` (`time.perf_counter`) is being handled."""
        self.waiting -= 1
        self._worst_s = max(self._worst_s, time.perf_counter() - arrived)

    def left(self, scope: dict[str, Any]) -> None:
        """A request that may have been admitted will not be handled."""
        if scope.pop(ARRIVED, None) is not None:
            self.waiting -= 1

    def adapt(self, lag_s: float) -> None:
        """Called every `PERIOD_S`; `lag_s` is how late."""
        if max(self._worst_s, lag_s) > self.target_s:
            self.limit = max(self.FLOOR, 0.7 * min(self.limit, max(self._peak, 1)))
        else:
            self.limit = min(self.CEILING, self.limit + self.STEP)
        self._peak, self._worst_s = self.waiting, 0.0


class Listener:
    """What the connections of one process share: limits, counts, and the clock that ends overdue ones."""

    def __init__(self, config: ServiceConfig, metrics: Metrics) -> None:
        self.config, self.metrics = config, metrics
        self.delay = DelayLimit(config.queue_delay_s)
        self.connections: set[BoundedProtocol] = set()
        self.by_address: Counter[str] = Counter()
        self._task: asyncio.Task[None] | None = None

    def connected(self, connection: BoundedProtocol) -> str | None:
        """Count a connection in; why not, where it is one too many."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._watch())
        address = connection.client[0] if connection.client else ""
        if self.by_address[address] >= self.config.connections_per_address:
            return "connections_per_address"
        if len(self.connections) >= self.config.connections and not self._make_room():
            return "connections"
        self.connections.add(connection)
        self.by_address[address] += 1
        return None

    def disconnected(self, connection: BoundedProtocol) -> None:
        if connection in self.connections:
            self.connections.discard(connection)
            address = connection.client[0] if connection.client else ""
            self.by_address[address] -= 1
            if not self.by_address[address]:
                del self.by_address[address]

    def _make_room(self) -> bool:
        """End the connection that has waited longest for a head or a next request, if there is one."""
        unused = [c for c in self.connections if c.phase in (Phase.HEAD, Phase.IDLE)]
        if not unused:
            return False
        min(unused, key=lambda c: c.since).end("connections")
        return True

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        loop, sweep = asyncio.get_running_loop(), 0.0
        while True:
            due = loop.time() + DelayLimit.PERIOD_S
            await asyncio.sleep(DelayLimit.PERIOD_S)
            now = time.monotonic()
            self.delay.adapt(max(0.0, loop.time() - due))
            if now >= sweep:
                sweep = now + _SWEEP_S
                for connection in [c for c in self.connections if c.overdue(now)]:
                    connection.end(connection.phase.value)


@dataclass(frozen=True, slots=True)
class _Refusal:
    status: bytes
    slug: bytes
    detail: bytes

    def render(self, close: bool) -> bytes:
        body = b'{"type":"urn:cotenant:problem:%s","title":"Request refused","status":%s,"detail":"%s"}' % (
            self.slug,
            self.status[:3],
            self.detail,
        )
        return b"".join(
            (
                b"HTTP/1.1 ",
                self.status,
                b"\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n",
                b"connection: close\r\n" if close else b"",
                b"content-length: %d\r\n\r\n" % len(body),
                body,
            )
        )


_TOO_LARGE = _Refusal(
    b"431 Request Header Fields Too Large", b"over-limit", b"the head of the request is too large."
)
_SLOW = _Refusal(b"408 Request Timeout", b"over-limit", b"the request did not arrive in time.")
_BUSY = _Refusal(
    b"503 Service Unavailable", b"unavailable", b"the service is overloaded. try again in a second."
)
_FULL = _Refusal(b"503 Service Unavailable", b"unavailable", b"too many connections. try again in a second.")


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None) -> None:
        super().__init__(config, server_state, app_state, _loop)
        app = config.loaded_app
        while not hasattr(app, "state"):  # uvicorn's own middleware around it
            app = app.app
        self.listener: Listener = app.state.service.listener
        self.phase, self.since = Phase.HEAD, time.monotonic()
        self._head_bytes = 0
        self._discard = False  # what comes belongs to a request that was answered without being handled
        self._task: asyncio.Task[None] | None = None

    def _enter(self, phase: Phase) -> None:
        self.phase, self.since = phase, time.monotonic()

    def overdue(self, now: float) -> bool:
        """Whether the peer took too long over what it has to do."""
        limits = self.listener.config
        if (
            self.phase is Phase.ANSWER
        ):  # the handler has a deadline of its own; an answer that nobody reads has not
            return self.flow.write_paused and now - self.since > limits.request_timeout_s + limits.body_s
        allowed = {Phase.HEAD: limits.header_s, Phase.BODY: limits.body_s, Phase.IDLE: limits.idle_s}[
            self.phase
        ]
        return now - self.since > allowed

    def end(self, reason: str) -> None:
        """Close the connection, with an answer where the peer was in the middle of a request."""
        self.listener.metrics.connections_ended.labels(reason).inc()
        unanswered = self.cycle is None or self.cycle.response_complete or not self.cycle.response_started
        if self.phase in (Phase.HEAD, Phase.BODY) and unanswered and not self._discard:
            self.transport.write(_SLOW.render(close=True))
            self.transport.close()
            if self._task is not None:
                self._task.cancel()
        else:
            self.transport.abort()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        refused = self.listener.connected(self)
        if refused is not None:
            self.listener.metrics.connections_ended.labels(refused).inc()
            transport.write(_FULL.render(close=True))
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.listener.disconnected(self)
        if self._task is not None and self.cycle is not None and not self.cycle.response_complete:
            self._task.cancel()  # nobody waits for the answer
        for scope in (self.scope, *(cycle.scope for cycle, _ in self.pipeline)):
            if scope is not None:
                self.listener.delay.left(scope)  # type: ignore[arg-type]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self.phase is Phase.IDLE:
            self._enter(Phase.HEAD)
        if self.phase is Phase.HEAD:
            self._head_bytes += len(data)
        super().data_received(data)
        if self.phase is Phase.HEAD and self._head_bytes > self.listener.config.header_bytes:
            self._refuse(_TOO_LARGE)

    def _refuse(self, refusal: _Refusal) -> None:
        self._discard = True
        self.listener.metrics.connections_ended.labels("head").inc()
        self.transport.write(refusal.render(close=True))
        self.transport.close()

    def on_message_begin(self) -> None:
        self._discard = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self.listener.config.header_bytes:
            self._refuse(_TOO_LARGE)
            return
        self._enter(Phase.BODY)
        watched = self.url.startswith(_WATCHED)
        alone = self.cycle is None or self.cycle.response_complete
        if not watched:
            if self.listener.delay.admit():
                self.scope[ARRIVED] = time.perf_counter()  # type: ignore[literal-required]
            elif alone:
                self._discard = True
                self.listener.metrics.refused.labels("queue_delay").inc()
                return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._discard:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._enter(Phase.ANSWER)
        if not self._discard:
            super().on_message_complete()
        elif not self.transport.is_closing():
            self.flow.pause_reading()
            self.loop.call_later(
                self.listener.config.shed_delay_s, self._answer_shed, self.parser.should_keep_alive()
            )

    def _answer_shed(self, keep_alive: bool) -> None:
        if self.transport.is_closing():
            return
        self._discard = False
        self.transport.write(_BUSY.render(close=not keep_alive))
        if not keep_alive:
            self.transport.close()
            return
        self._enter(Phase.IDLE)
        self.flow.resume_reading()

    def on_response_complete(self) -> None:
        if self.phase is Phase.ANSWER and not self.pipeline:
            self._enter(Phase.IDLE)
        super().on_response_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        task = self.loop.create_task(cycle.run_asgi(app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)
        self._task = task
