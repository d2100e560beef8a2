"""The event loop of a worker: uvloop, which accepts all connections that wait.

libuv accepts one connection in a turn of its loop (since 1.45). Under load a turn takes milliseconds, so that of some hundred
clients that come at once the last one waits for seconds before anything of it is read, be it a health check.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvloop

# Accepted in a turn after one that took so long that connections queue. In short turns it is one, or the worker that wakes first
# would leave nothing to the others.
_AT_ONCE, _LONG_TURN_S = 64, 1e-3


class AcceptPace:
    """How many connections to accept in a turn: one in short turns, `_AT_ONCE` after a long one in which more may have come."""

    def __init__(self) -> None:
        self._left_s = math.inf

    def most(self, now_s: float) -> int:
        """In the turn that begins."""
        return _AT_ONCE if now_s - self._left_s > _LONG_TURN_S else 1

    def taken(self, now_s: float, all_of_them: bool) -> None:
        """Say whether the queue was emptied."""
        self._left_s = math.inf if all_of_them else now_s


class AcceptingLoop(uvloop.Loop):
    """Takes up to 64 connections more in a turn where turns are long."""

    async def create_server(self, protocol_factory: Any, *arguments: Any, **named: Any) -> Any:
        server = await super().create_server(protocol_factory, *arguments, **named)
        if named.get("ssl") is None:
            for listening in server.sockets:  # type: ignore[attr-defined]
                # Another descriptor of the same socket, because one can be watched once only.
                self._accept_from(
                    socket.fromfd(listening.fileno(), listening.family, listening.type),
                    protocol_factory,
                    server,
                )
        return server

    def _accept_from(
        self, listening: socket.socket, protocol_factory: Callable[[], Any], server: Any
    ) -> None:
        listening.setblocking(False)
        connecting: set[asyncio.Task[Any]] = set()
        pace = AcceptPace()

        def accept() -> None:
            if not server.is_serving():
                self.remove_reader(listening)
                listening.close()
                return
            all_of_them = True
            with suppress(OSError):  # nobody waits any more, or no descriptor is left
                for _ in range(pace.most(time.monotonic())):
                    connection, _ = listening.accept()
                    connection.setblocking(False)
                    task = self.create_task(self.connect_accepted_socket(protocol_factory, connection))
                    connecting.add(task)
                    task.add_done_callback(connecting.discard)
                all_of_them = False
            pace.taken(time.monotonic(), all_of_them)

        self.add_reader(listening, accept)
