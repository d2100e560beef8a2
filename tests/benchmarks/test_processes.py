"""What benchmarks read of a service's processes, and how they talk to it without a client library."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from benchmarks.overload import read_status, request_bytes
from benchmarks.processes import end, memory_bytes, processor_s


def test_descendants_count_too() -> None:
    own_s, own_bytes = processor_s(os.getpid()), memory_bytes(os.getpid())
    busy = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ntime.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        assert processor_s(os.getpid()) >= own_s + 0.2
        assert memory_bytes(os.getpid()) >= own_bytes + 1_000_000
    finally:
        end(child)


def test_answers_on_one_connection_are_read_one_by_one() -> None:
    async def statuses() -> list[int]:
        reader = asyncio.StreamReader()
        reader.feed_data(b"HTTP/1.1 409 Conflict\r\nContent-Length: 2\r\n\r\n{}")
        reader.feed_data(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nx: y\r\n\r\nnull")
        return [await read_status(reader), await read_status(reader)]

    assert asyncio.run(statuses()) == [409, 200]
    head, _, body = request_bytes("POST", "/v1/place", {"job": "é"}).partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/place HTTP/1.1\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert request_bytes("GET", "/", None).endswith(b"Content-Length: 0\r\n\r\n")
