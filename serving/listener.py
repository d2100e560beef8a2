"""The listener: uvicorn's httptools protocol with bounds on heads, bodies, idle connections and time in the queue.

uvicorn bounds a request's head only with its slower h11 parser, and neither it, hypercorn nor granian limits
connections per address or sheds load by queueing time; `http=` accepts a protocol class, so that is done
here.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections import Counter, deque
from enum import Enum
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from serving.delay import ARRIVED, DelayLimit
from serving.refusals import BUSY_ANSWERS, FULL, MALFORMED, SLOW, TOO_LARGE

if TYPE_CHECKING:
    from serving.config import ServiceConfig
    from serving.metrics import Metrics

# Never shed, because operators must be able to see an overload.
WATCHED = ("/v1/health/", "/v2/health/", "/metrics")
_WATCHED = tuple(path.encode() for path in WATCHED)
CALLER_LEFT = "nobody waits for the answer"  # message of a task's cancellation
_SWEEP_S = 0.5
_STARTED_IN_A_TURN = 8  # handlers started per turn of the event loop
# Refusals sent per turn; clients answer them at once with another request.
_ANSWERED_IN_A_TURN, _PAUSE_S = 16, 0.001


class Phase(Enum):
    """What a connection is waiting for."""

    HEAD = "head"
    BODY = "body"
    ANSWER = "answer"
    IDLE = "idle"


class Listener:
    """State shared by the connections of one process: limits, counts, and the clock that ends overdue ones."""

    def __init__(self, config: ServiceConfig, metrics: Metrics, delay: DelayLimit) -> None:
        self.config, self.metrics, self.delay = config, metrics, delay
        self._to_start: deque[tuple[BoundedProtocol, Any, Any]] = deque()
        # Shed connections, and when to answer them.
        self._held: deque[tuple[float, BoundedProtocol]] = deque()
        self._answering: asyncio.TimerHandle | None = None
        self.refused = 0  # number shed since the metric was last updated
        self._refused = metrics.refused.labels("queue_delay")
        self.connections: set[BoundedProtocol] = set()
        self.by_address: Counter[str] = Counter()
        self._task: asyncio.Task[None] | None = None

    def connected(self, connection: BoundedProtocol) -> str | None:
        """Count a connection; returns the reason if it is one too many."""
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
        """Close the connection that has waited longest for a head or a next request, if any."""
        # Of many that are accepted in one turn of the loop, each ends another one.
        unused = [
            c
            for c in self.connections
            if c.phase in (Phase.HEAD, Phase.IDLE) and not c.transport.is_closing()
        ]
        if not unused:
            return False
        min(unused, key=lambda c: c.since).end("connections")
        return True

    def start(self, connection: BoundedProtocol, cycle: Any, app: Any) -> None:
        """Handle a request after all earlier ones, a few per turn of the event loop.

        Requests that bypass this queue, such as health checks, wait for one short turn only.
        """
        if not self._to_start:
            asyncio.get_running_loop().call_soon(self._start_some)
        self._to_start.append((connection, cycle, app))

    def _start_some(self) -> None:
        for _ in range(min(_STARTED_IN_A_TURN, len(self._to_start))):
            connection, cycle, app = self._to_start.popleft()
            if cycle.disconnected:
                self.delay.left(cycle.scope)
            else:
                connection.handle(cycle, app)
        if self._to_start:
            asyncio.get_running_loop().call_soon(self._start_some)

    def hold(self, connection: BoundedProtocol) -> None:
        """Answer a shed request after `shed_delay_s`."""
        self._held.append((time.monotonic() + self.config.shed_delay_s, connection))
        if self._answering is None:
            self._answer_later(self.config.shed_delay_s)

    def _answer_later(self, seconds: float) -> None:
        self._answering = asyncio.get_running_loop().call_later(seconds, self._answer_held)

    def _answer_held(self) -> None:
        """Answer shed requests whose delay is over, a few per turn."""
        now = time.monotonic()
        for _ in range(_ANSWERED_IN_A_TURN):
            if not self._held or self._held[0][0] > now:
                break
            self._held.popleft()[1].answer_shed()
        self._answering = None
        if self._held:
            self._answer_later(max(_PAUSE_S, self._held[0][0] - now))

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._answering is not None:
            self._answering.cancel()

    async def _watch(self) -> None:
        loop, sweep = asyncio.get_running_loop(), 0.0
        while True:
            due = loop.time() + DelayLimit.PERIOD_S
            await asyncio.sleep(DelayLimit.PERIOD_S)
            now = time.monotonic()
            self.delay.adapt(max(0.0, loop.time() - due))
            if now >= sweep:
                sweep = now + _SWEEP_S
                self._end_overdue(now)
            self._count_refused()

    def unread_bytes(self) -> int:
        """Size of the answers that callers have not read yet."""
        return sum(connection.transport.get_write_buffer_size() for connection in self.connections)

    def _count_refused(self) -> None:
        if self.refused:
            self._refused.inc(self.refused)
            self.refused = 0

    def _end_overdue(self, now: float) -> None:
        config = self.config
        # Skip connections below every bound, which are nearly all of them when there are thousands.
        recent = now - min(config.header_s, config.body_s, config.idle_s)
        for connection in [c for c in self.connections if c.since < recent and c.overdue(now)]:
            connection.end(connection.phase.value)


# Requests that may be shed unread: a body of known length, and no header that affects the connection.
_SHEDDABLE = (b"POST /v", b"PUT /v")
_UNREAD_BYTES = 4096  # longer heads are parsed
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,6})[ \t]*(?=\r\n|$)", re.IGNORECASE)
_UNUSUAL = re.compile(
    rb"[\r\n](?:transfer-encoding|connection|expect|upgrade)[ \t]*:| HTTP/1\.0\r\n", re.IGNORECASE
)


@lru_cache(maxsize=256)  # a client's heads are similar
def _body_length(head: bytes) -> int:
    """The body length announced in a request's head; -1 if the request must be parsed to know."""
    lengths = _LENGTH.findall(head)
    if len(lengths) != 1 or head.lower().count(b"content-length") != 1 or _UNUSUAL.search(head):
        return -1
    return int(lengths[0])


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None) -> None:
        super().__init__(config, server_state, app_state, _loop)
        # There are no websockets here, and a connection handed to uvicorn's protocol for them would never be
        # returned.
        self.ws_protocol_class = None
        app = config.loaded_app
        while not hasattr(app, "state"):  # uvicorn's own middleware around the app
            app = app.app
        self.listener: Listener = app.state.service.listener
        self.phase, self.since = Phase.HEAD, time.monotonic()
        # Received of the head, and of the body's framing (chunk extensions, trailers) since its last byte.
        self._head_bytes = self._framing_bytes = 0
        self._discard = False  # incoming data belongs to a request already answered without being handled
        self._shed: bool | None = None  # whether the connection stays open after the pending refusal
        self._later = b""  # data received meanwhile
        self._task: asyncio.Task[None] | None = None

    def _enter(self, phase: Phase) -> None:
        self.phase, self.since = phase, time.monotonic()

    def overdue(self, now: float) -> bool:
        """Whether the peer has exceeded its time limit."""
        limits = self.listener.config
        # The handler has its own deadline; an answer that nobody reads has none.
        if self.phase is Phase.ANSWER:
            return self.flow.write_paused and now - self.since > limits.request_timeout_s + limits.body_s
        allowed = {Phase.HEAD: limits.header_s, Phase.BODY: limits.body_s, Phase.IDLE: limits.idle_s}[
            self.phase
        ]
        return now - self.since > allowed

    def end(self, reason: str) -> None:
        """Close the connection, with an answer if the peer was in the middle of a request."""
        if self.transport.is_closing():  # and still open: the peer does not read what was sent before
            self.transport.abort()
            return
        self.listener.metrics.connections_ended.labels(reason).inc()
        unanswered = self.cycle is None or self.cycle.response_complete or not self.cycle.response_started
        if self.phase in (Phase.HEAD, Phase.BODY) and unanswered and not self._discard:
            self.transport.write(SLOW.render(close=True))
            self.transport.close()
            self._enter(self.phase)  # as much time again to read it
            if self._task is not None:
                self._task.cancel()
        else:
            self.transport.abort()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        refused = self.listener.connected(self)
        if refused is not None:
            self.listener.metrics.connections_ended.labels(refused).inc()
            transport.write(FULL.render(close=True))
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.listener.disconnected(self)
        if self._task is not None and self.cycle is not None and not self.cycle.response_complete:
            self._task.cancel(CALLER_LEFT)
        for scope in (self.scope, *(cycle.scope for cycle, _ in self.pipeline)):
            if scope is not None:
                self.listener.delay.left(scope)  # type: ignore[arg-type]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._shed is not None:  # the next request arrived before this one was answered, so it waits
            self._later += data
            self.flow.pause_reading()
            return
        if self._shed_unread(data):
            return
        if self.phase is Phase.IDLE:
            self._enter(Phase.HEAD)
        if self.phase is Phase.HEAD:
            self._head_bytes += len(data)
        elif self.phase is Phase.BODY:
            self._framing_bytes += len(data)
        super().data_received(data)
        most = self.listener.config.header_bytes
        if (self.phase is Phase.HEAD and self._head_bytes > most) or (
            self.phase is Phase.BODY and self._framing_bytes > most
        ):
            self._refuse_large()

    def _refuse_large(self) -> None:
        self.listener.metrics.connections_ended.labels("head").inc()
        if self.phase is Phase.BODY and self.cycle is not None and self.cycle.response_started:
            self.transport.abort()
            return
        self._discard = True
        self.transport.write(TOO_LARGE.render(close=True))
        self.transport.close()

    def send_400_response(self, _msg: str) -> None:
        """Answer data that is not HTTP with problem details, instead of uvicorn's plain text."""
        self._discard = True
        self.listener.metrics.connections_ended.labels("malformed").inc()
        error = sys.exception()  # the parser's, such as "Invalid method encountered"
        refusal = MALFORMED if error is None else MALFORMED.got(str(error))
        self.transport.write(refusal.render(close=True))
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Handle an upgrade request like any other; uvicorn would log that a library is missing."""

    def on_message_begin(self) -> None:
        if self._shed is not None:  # arrived together with the next request, whose answer must not come first
            self.answer_shed()
        self._discard = False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.phase is not Phase.BODY:  # trailers are dropped: a proxy may not have looked at them
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_bytes = self._framing_bytes = 0
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self.listener.config.header_bytes:
            self._refuse_large()
            return
        self._enter(Phase.BODY)
        watched = self.url.startswith(_WATCHED)
        alone = self.cycle is None or self.cycle.response_complete
        if not watched:
            if self.listener.delay.admit():
                self.scope[ARRIVED] = time.perf_counter()  # type: ignore[literal-required]
            elif alone:
                self._discard = True
                return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._framing_bytes = 0
        if not self._discard:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._enter(Phase.ANSWER)
        if not self._discard:
            super().on_message_complete()
        elif not self.transport.is_closing():
            self._hold(self.parser.should_keep_alive())

    def _shed_unread(self, data: bytes) -> bool:
        """Refuse a small request that arrived in one piece, without parsing it.

        Under overload these are most of the work.
        """
        fresh = self.phase is Phase.IDLE or (
            self.phase is Phase.HEAD and not self._head_bytes and self.cycle is None
        )
        if not (fresh and self.listener.delay.full and data.startswith(_SHEDDABLE)):
            return False
        end = data.find(b"\r\n\r\n", 0, _UNREAD_BYTES)
        if end < 0 or _body_length(data[:end]) != len(data) - end - 4:
            return False
        self._unset_keepalive_if_required()
        self._enter(Phase.ANSWER)
        self._discard = True
        self._hold(keep_alive=True)
        return True

    def _hold(self, keep_alive: bool) -> None:
        self.listener.refused += 1
        self.listener.delay.refused()
        self._shed = keep_alive
        self.listener.hold(self)

    def answer_shed(self) -> None:
        """Answer the shed request; the connection continues with the data received since."""
        keep_alive, self._shed = self._shed, None
        if keep_alive is None or self.transport.is_closing():
            return
        self._discard = False
        self.transport.write(BUSY_ANSWERS[keep_alive])
        if not keep_alive:
            self.transport.close()
            return
        self._enter(Phase.IDLE)
        later, self._later = self._later, b""
        self.flow.resume_reading()
        if later:
            self.data_received(later)

    def on_response_complete(self) -> None:
        if self.phase is Phase.ANSWER and not self.pipeline:
            self._enter(Phase.IDLE)
        super().on_response_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if cycle.scope["raw_path"].startswith(_WATCHED):
            self.handle(cycle, app)
        else:
            self.listener.start(self, cycle, app)

    def handle(self, cycle: Any, app: Any) -> None:
        """Handle a request in its own task."""
        task = self.loop.create_task(cycle.run_asgi(app))
        task.add_done_callback(partial(self._handled, cycle.scope))
        self.tasks.add(task)
        self._task = task

    def _handled(self, scope: dict[str, Any], task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self.listener.delay.left(scope)  # unless it has begun: the task may have been cancelled before it ran
