"""A service on a real socket, and a client that keeps its connections busy."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from serving.listener import BoundedProtocol
from tests.waiting import LONG_S, until


@contextmanager
def serve(app: Any, loop: str = "auto", drain_s: int | None = None) -> Iterator[int]:
    """Run `app` in a thread on a free port of 127.0.0.1; yields the port once a model is loaded.

    `loop` is the event loop, as uvicorn names it.
    """
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            host="127.0.0.1",
            port=0,
            loop=loop,
            log_config=None,
            access_log=False,
            http=BoundedProtocol,
            timeout_graceful_shutdown=drain_s,
        )
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started and app.state.service.life.serving, "the service starts")
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(LONG_S)


async def load(port: int, path: str, bodies: list[Any], connections: int = 8) -> Counter[int]:
    """POST all `bodies` over keep-alive connections; returns the count by status (0: connection broken)."""
    queue = [json.dumps(body).encode() for body in bodies]
    statuses: Counter[int] = Counter()

    async def worker() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while queue:
            body = queue.pop()
            head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            try:
                start = await reader.readuntil(b"\r\n\r\n")
                length = int(start.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                await reader.readexactly(length)
                statuses[int(start.split(b" ", 2)[1])] += 1
            except (asyncio.IncompleteReadError, ConnectionError):
                statuses[0] += 1
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()

    await asyncio.gather(*(worker() for _ in range(connections)))
    return statuses
