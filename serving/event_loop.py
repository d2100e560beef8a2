"""The event loop of a worker: uvloop, which accepts all connections that wait.

libuv accepts one connection in a turn of its loop (since 1.45). Under load a turn takes milliseconds, so that of some hundred
clients that come at once the last one waits for seconds before anything of it is read, be it a health check.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvloop

_AT_ONCE = 64


class AcceptingLoop(uvloop.Loop):
    """Takes up to 64 connections more in a turn."""

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

        def accept() -> None:
            if not server.is_serving():
                self.remove_reader(listening)
                listening.close()
                return
            with suppress(OSError):  # nobody waits any more, or no descriptor is left
                for _ in range(_AT_ONCE):
                    connection, _ = listening.accept()
                    connection.setblocking(False)
                    task = self.create_task(self.connect_accepted_socket(protocol_factory, connection))
                    connecting.add(task)
                    task.add_done_callback(connecting.discard)

        self.add_reader(listening, accept)
