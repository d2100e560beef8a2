"""Answers that callers do not read take bounded memory."""

from __future__ import annotations

import json
from pathlib import Path

from serving.app import create_app
from serving.config import ServiceConfig
from serving.listener import Listener, Phase
from tests.serving.live import serve
from tests.serving.table import TableSource
from tests.serving.test_listener import connected, next_answer, service
from tests.waiting import until


def large_request() -> bytes:
    """A request whose answer is larger than what the kernel keeps of it, which is some megabytes."""
    jobs = [f"resnet18-cifar:step_time_s={0.1 + k / 1000}" for k in range(16)]
    body = json.dumps({"sets": [{"device": "v100", "jobs": jobs}] * 1500}).encode()
    head = b"POST /v1/predict/batch HTTP/1.1\r\nHost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return head + b"content-length: %d\r\n\r\n" % len(body) + body


def test_answers_that_nobody_reads_are_bounded(tmp_path: Path) -> None:
    large = large_request()
    small = b"GET /v1/devices/v100 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with service(tmp_path, buffer_bytes=2**21) as port, connected(port, large) as unread:
        assert unread.recv(1)
        with connected(port, large) as connection:
            told = next_answer(connection)
            assert told.startswith(b"HTTP/1.1 503")
            assert b"too many large answers wait to be read" in told
            connection.sendall(small)
            assert next_answer(connection).startswith(b"HTTP/1.1 200"), "small ones are sent"
            unread.close()

            def again() -> bool:
                connection.sendall(large)
                return next_answer(connection).startswith(b"HTTP/1.1 200")

            until(again, "the memory is given back")


def test_a_slow_head_behind_an_unread_answer_ends_the_connection_once(tmp_path: Path) -> None:
    """The refusal waits behind the answer, and so does the connection's end."""
    config = ServiceConfig(database_url=f"sqlite:///{tmp_path}/s.db", log_level="error", header_s=0.3)
    app = create_app(config, TableSource())
    with serve(app) as port, connected(port, large_request()) as connection:
        assert connection.recv(1)
        listener: Listener = app.state.service.listener
        until(lambda: [c.phase for c in listener.connections] == [Phase.IDLE], "the answer is complete")
        assert listener.unread_bytes()
        connection.sendall(b"GET /v1/devices HTTP/1.1\r\nHost:")
        until(lambda: not listener.connections, "the connection ends")
        ended = app.state.service.metrics.connections_ended
        assert [s.value for m in ended.collect() for s in m.samples if s.name.endswith("total")] == [1]
