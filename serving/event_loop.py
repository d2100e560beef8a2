"""The event loop of a worker: uvloop, with its own queue of connections, emptied in every turn.

Two properties of libuv matter under load. It accepts one connection per turn (since 1.45), and a turn then
takes milliseconds: when some hundred clients connect at once, the last waits for seconds before anything of
its request is read, even a health check. And when processes share one listening socket, the one that wakes
first accepts most of a burst, so that one core serves while the other idles. With SO_REUSEPORT each worker
has its own queue, and the kernel spreads connections over them by address and port.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvloop

from serving.address import is_spread, listen_beside

_AT_ONCE = 64  # connections accepted per turn in addition to libuv's one


class AcceptingLoop(uvloop.Loop):
    """Accepts all waiting connections in each turn; with several workers, each listens on its own socket."""

    async def create_server(
        self,
        protocol_factory: Any,
        *arguments: Any,
        sock: socket.socket | None = None,
        **named: Any,
    ) -> Any:
        shared = sock is not None
        if sock is not None and is_spread(sock):
            sock, shared = listen_beside(sock), False
        server = await super().create_server(protocol_factory, *arguments, sock=sock, **named)
        if named.get("ssl") is None and not shared:
            for listening in server.sockets:  # type: ignore[attr-defined]
                # A duplicate, because a descriptor can be watched only once.
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
            with suppress(OSError):  # nobody waits any more, or no descriptors are left
                for _ in range(_AT_ONCE):
                    connection, _ = listening.accept()
                    connection.setblocking(False)
                    task = self.create_task(self.connect_accepted_socket(protocol_factory, connection))
                    connecting.add(task)
                    task.add_done_callback(connecting.discard)

        self.add_reader(listening, accept)
