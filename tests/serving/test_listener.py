"""Heads, bodies, idle connections and their number are bounded, and slow clients do not block others."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from serving.app import create_app
from serving.config import ServiceConfig
from serving.delay import ARRIVED, DelayLimit
from serving.listener import BoundedProtocol, Listener
from serving.metrics import Metrics
from tests.serving.live import serve
from tests.serving.table import TableSource
from tests.waiting import LONG_S, until


@contextmanager
def service(folder: Path, **settings: Any) -> Iterator[int]:
    config = ServiceConfig(database_url=f"sqlite:///{folder}/s.db", log_level="error", **settings)
    with serve(create_app(config, TableSource())) as port:
        yield port


@contextmanager
def connected(port: int, sent: bytes = b"", source: str = "127.0.0.1") -> Iterator[socket.socket]:
    with socket.create_connection(
        ("127.0.0.1", port), timeout=LONG_S, source_address=(source, 0)
    ) as connection:
        connection.sendall(sent)
        yield connection


def answer(connection: socket.socket) -> bytes:
    """Everything received until the other side closes."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def next_answer(connection: socket.socket) -> bytes:
    """One response on a connection that stays open."""
    with connection.makefile("rb") as file:
        head = file.readline()
        length = 0
        while (line := file.readline()).strip():
            name, _, value = line.lower().partition(b":")
            length = int(value) if name == b"content-length" else length
        return head + file.read(length)


def live(port: int) -> int:
    return httpx.get(f"http://127.0.0.1:{port}/v1/health/live", timeout=LONG_S, trust_env=False).status_code


def test_malformed_http_gets_a_problem_response(tmp_path: Path) -> None:
    head = b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    with service(tmp_path) as port:
        for sent in (b"GARBAGE\r\n\r\n", head + b"Content-Length: -1\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n"):
            with connected(port, sent) as connection:
                told = answer(connection)
            assert told.startswith(b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json"), (
                sent
            )
            assert b"expected a known method" in told
            assert b"retry-after" not in told, "the same request fails again"
        assert live(port) == 200


def test_upgrade_requests_are_answered_normally(tmp_path: Path) -> None:
    head = (
        b"GET /v1/devices/v100 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    app = create_app(
        ServiceConfig(database_url=f"sqlite:///{tmp_path}/s.db", log_level="error"), TableSource()
    )
    listener = app.state.service.listener
    with serve(app) as port:
        for _ in range(20):
            with connected(port, head) as connection:
                assert next_answer(connection).startswith(b"HTTP/1.1 200 OK")
        until(lambda: not listener.connections, "the connections are given back")


def test_a_long_head_is_refused_early(tmp_path: Path) -> None:
    with (
        service(tmp_path, header_bytes=4096) as port,
        connected(port, b"GET / HTTP/1.1\r\nx: ") as connection,
    ):
        sent = 0
        try:
            while sent < 2**26:
                sent += connection.send(b"x" * 2**16)
        except OSError:
            pass
        assert sent < 2**24, "the service stopped reading"
        assert live(port) == 200
    head = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nx: " + b"y" * 5000 + b"\r\n\r\n"
    with service(tmp_path, header_bytes=4096) as port, connected(port, head) as connection:
        assert answer(connection).startswith(b"HTTP/1.1 431")


CHUNKED = (
    b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
)


@pytest.mark.parametrize(
    ("begin", "piece"),
    [(b"0\r\nx: ", b"y" * 2**16), (b"0\r\n", b"x: y\r\n" * 2**13), (b"5;x=", b"y" * 2**16)],
)
def test_long_trailers_and_chunk_extensions_are_refused_early(
    tmp_path: Path, begin: bytes, piece: bytes
) -> None:
    """They hold up all requests in parsing, and fill the memory."""
    with (
        service(tmp_path, body_bytes=10_000) as port,
        connected(port, CHUNKED + b"1\r\n{\r\n" + begin) as connection,
    ):
        sent = 0
        try:
            while sent < 2**26:
                sent += connection.send(piece)
        except OSError:
            pass
        assert sent < 2**24, "the service stopped reading"
        assert live(port) == 200


def test_trailers_are_no_headers(tmp_path: Path) -> None:
    body = b'{"device":"v100","jobs":["resnet18-cifar"]}'
    chunks = b"%x\r\n%s\r\n0\r\n" % (len(body), body)
    for trailer in (b"", b"Content-Encoding: gzip\r\nX-Timeout-S: never\r\n"):
        with service(tmp_path) as port, connected(port, CHUNKED + chunks + trailer + b"\r\n") as connection:
            assert answer(connection).startswith(b"HTTP/1.1 200 OK")


def test_slow_heads_bodies_and_idle_connections_end(tmp_path: Path) -> None:
    post = b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
    get = b"GET /v1/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with service(tmp_path, header_s=0.3, body_s=0.3) as port:
        for sent in (b"GET / HT", post, b""):
            with connected(port, sent) as connection:
                assert answer(connection).split(b" ")[1] == b"408"
    with service(tmp_path, idle_s=0.3, header_s=LONG_S) as port, connected(port, get) as connection:
        assert answer(connection).split(b" ")[1] == b"200"


def test_half_open_connections_do_not_block_others(tmp_path: Path) -> None:
    with service(tmp_path, connections=20, connections_per_address=1000) as port:
        opened = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
        assert live(port) == 200
        for connection in opened:
            connection.close()


def test_connections_that_arrive_all_at_once_are_bounded_too(tmp_path: Path) -> None:
    config = ServiceConfig(
        database_url=f"sqlite:///{tmp_path}/s.db",
        log_level="error",
        connections=10,
        connections_per_address=1000,
        header_s=LONG_S,
    )
    app = create_app(config, TableSource())
    with serve(app, "serving.event_loop:AcceptingLoop") as port, ExitStack() as stack:
        listener: Listener = app.state.service.listener
        for _ in range(10):
            stack.enter_context(connected(port))
        until(lambda: len(listener.connections) == 10, "the first are accepted")
        known = set(listener.connections)
        assert listener._task is not None
        busy = threading.Event()
        listener._task.get_loop().call_soon_threadsafe(busy.wait, LONG_S)
        for _ in range(40):
            stack.enter_context(connected(port))
        busy.set()
        until(lambda: not known & set(listener.connections), "the first make room")
        until(lambda: len(listener.connections) <= 10, "no more than allowed stay")


def test_connections_of_one_address(tmp_path: Path) -> None:
    with service(tmp_path, connections_per_address=3) as port:
        opened = [
            socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0)) for _ in range(3)
        ]
        with connected(port, source="127.0.0.2") as connection:
            assert answer(connection).startswith(b"HTTP/1.1 503")
        assert live(port) == 200
        for connection in opened:
            connection.close()


def test_bodies_being_read_take_no_slot(tmp_path: Path) -> None:
    head = b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n"
    with service(tmp_path, requests_in_flight=4, open_in_flight=2) as port:
        opened = []
        for path in (b"/v1/predict", b"/login"):
            for _ in range(10):
                connection = socket.create_connection(("127.0.0.1", port))
                connection.sendall(head % path)
                opened.append(connection)
        body = {"device": "v100", "jobs": ["resnet18-cifar"]}
        asked = httpx.post(f"http://127.0.0.1:{port}/v1/predict", json=body, timeout=LONG_S, trust_env=False)
        assert asked.status_code == 200
        for connection in opened:
            connection.close()


def test_client_disconnects_are_499_and_not_faults(tmp_path: Path) -> None:
    config = ServiceConfig(database_url=f"sqlite:///{tmp_path}/s.db", log_level="error")
    app = create_app(config, TableSource())
    with serve(app) as port:
        with connected(port, b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                       b"Content-Length: 500\r\n\r\n{"):  # fmt: skip
            pass

        def left() -> str:
            text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=LONG_S, trust_env=False).text
            return text if 'status="499"' in text else ""

        assert 'status="500"' not in until(left, "the caller is gone")
        until(lambda: app.state.service.delay.waiting == 0, "nobody waits")


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST"])
def test_nothing_waits_once_a_connection_is_closed(tmp_path: Path, method: str) -> None:
    config = ServiceConfig(database_url=f"sqlite:///{tmp_path}/s.db", log_level="error")
    app = create_app(config, TableSource())
    request = f"{method} /v1/devices HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n"
    with serve(app) as port:
        with connected(port, request.encode()) as connection:
            assert connection.recv(65536)
        until(lambda: not app.state.service.listener.connections, "the connection is closed")
        assert app.state.service.delay.waiting == 0


def test_requests_that_end_before_they_begin_do_not_wait_for_ever() -> None:
    """As those do that are pipelined on a connection which closes in the same turn of the loop."""

    async def run(_: Any) -> None: ...

    async def main() -> int:
        delay = DelayLimit(1.0)
        listener = Listener(ServiceConfig(), Metrics(), delay)
        connection: Any = SimpleNamespace(loop=asyncio.get_running_loop(), tasks=set(), listener=listener)
        connection._handled = lambda *given: BoundedProtocol._handled(connection, *given)
        cycles: list[Any] = [
            SimpleNamespace(scope={ARRIVED: 0.0}, run_asgi=run, disconnected=gone) for gone in (False, True)
        ]
        assert delay.admit()
        assert delay.admit()
        BoundedProtocol.handle(connection, cycles[0], None)
        connection._task.cancel()
        listener.start(connection, cycles[1], None)
        for _ in range(3):
            await asyncio.sleep(0)
        return delay.waiting

    assert asyncio.run(main()) == 0


def test_shed_requests_are_answered_late_on_a_kept_connection(tmp_path: Path) -> None:
    config = ServiceConfig(
        database_url=f"sqlite:///{tmp_path}/s.db", log_level="error", shed_delay_s=0.2, queue_delay_s=LONG_S
    )
    app = create_app(config, TableSource())
    with (
        serve(app) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=LONG_S) as client,
    ):
        app.state.service.delay.limit = 0.0
        app.state.service.delay.STEP = 0.0  # type: ignore[misc]
        started = time.monotonic()
        refused = client.post("/v1/predict", json={"device": "v100", "jobs": ["resnet18-cifar"]})
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert time.monotonic() - started >= 0.2
        assert client.get("/v1/health/live").status_code == 200
        app.state.service.delay.limit = 100.0
        assert client.get("/v1/devices").status_code == 200


SHED = b"HTTP/1.1 503"
ASKED = b'{"device": "v100", "jobs": ["resnet18-cifar"]}'


def posted(*lines: bytes, body: bytes = ASKED) -> bytes:
    """A POST in one piece."""
    length = b"Content-Length: %d" % len(body)
    head = (b"POST /v1/predict HTTP/1.1", b"Host: 127.0.0.1", b"Content-Type: application/json", length)
    return b"\r\n".join((*head, *lines, b"", body))


def metrics_of(port: int) -> str:
    return httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=LONG_S, trust_env=False).text


def full(app: Any) -> None:
    """Admit no request."""
    app.state.service.delay.limit = 0.0
    app.state.service.delay.STEP = 0.0


@pytest.mark.parametrize(
    "extra", [(), (b"Connection: keep-alive",), (b"Expect: 100-continue",)], ids=["unread", "read", "expect"]
)
def test_requests_behind_one_that_is_shed_wait_for_its_answer(
    tmp_path: Path, extra: tuple[bytes, ...]
) -> None:
    config = ServiceConfig(
        database_url=f"sqlite:///{tmp_path}/s.db", log_level="error", shed_delay_s=0.1, queue_delay_s=LONG_S
    )
    app = create_app(config, TableSource())
    with serve(app) as port:
        full(app)
        with connected(port, posted(*extra)) as one:
            one.sendall(b"GET /v1/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            got = b""
            while more := one.recv(65536):
                got += more
        assert got.startswith(SHED)
        assert got.count(b"HTTP/1.1 ") == 2
        assert b"HTTP/1.1 200" in got
        counted = 'cotenant_requests_refused_total{reason="queue_delay"} 1.0'
        until(lambda: counted in metrics_of(port), "the refusal is counted")


def test_requests_not_in_one_piece_are_read_before_shedding(tmp_path: Path) -> None:
    """A body in two pieces, and two requests in one."""
    config = ServiceConfig(
        database_url=f"sqlite:///{tmp_path}/s.db", log_level="error", shed_delay_s=0.05, queue_delay_s=LONG_S
    )
    app = create_app(config, TableSource())
    with serve(app) as port:
        full(app)
        whole = posted()
        with connected(port, whole[:-5]) as one:
            one.sendall(whole[-5:])
            assert next_answer(one).startswith(SHED)
            one.sendall(whole)
            assert next_answer(one).startswith(SHED)
        app.state.service.delay.limit = 100.0
        with connected(port, whole) as one:
            assert next_answer(one).startswith(b"HTTP/1.1 200")


def test_health_does_not_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with service(tmp_path) as port:
        monkeypatch.setattr("serving.listener._STARTED_IN_A_TURN", 0)
        with connected(port, b"GET /v1/devices HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") as other:
            assert live(port) == 200
            other.settimeout(0.05)
            with pytest.raises(TimeoutError):
                other.recv(1)
            monkeypatch.setattr("serving.listener._STARTED_IN_A_TURN", 8)
            other.settimeout(LONG_S)
            assert next_answer(other).startswith(b"HTTP/1.1 200")


def test_requests_start_in_order_a_few_per_turn() -> None:
    async def run() -> list[int]:
        begun: list[int] = []

        class Connection:
            def handle(self, cycle: Any, _app: Any) -> None:
                begun.append(cycle.number)

        class Cycle:
            def __init__(self, number: int) -> None:
                self.number, self.disconnected = number, number == 3
                self.scope: dict[str, Any] = {}

        listener = Listener(ServiceConfig(), Metrics(), DelayLimit(0.025))
        for number in range(20):
            listener.start(Connection(), Cycle(number), None)  # type: ignore[arg-type]
        counts = []
        while len(begun) < 19:
            await asyncio.sleep(0)
            counts.append(len(begun))
        assert counts[:3] == [7, 15, 19], "one of the first eight had left"
        return begun

    assert asyncio.run(run()) == [n for n in range(20) if n != 3]
