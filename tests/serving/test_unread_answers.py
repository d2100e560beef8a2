"""Answers that callers do not read take bounded memory."""

from __future__ import annotations

import json
from pathlib import Path

from tests.serving.test_listener import connected, next_answer, service
from tests.waiting import until


def test_answers_that_nobody_reads_are_bounded(tmp_path: Path) -> None:
    """The kernel keeps some megabytes of an answer, the service the rest."""
    jobs = [f"resnet18-cifar:step_time_s={0.1 + k / 1000}" for k in range(16)]
    body = json.dumps({"sets": [{"device": "v100", "jobs": jobs}] * 1500}).encode()
    head = b"POST /v1/predict/batch HTTP/1.1\r\nHost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    large = head + b"content-length: %d\r\n\r\n" % len(body) + body
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
