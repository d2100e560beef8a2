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
        if named.get("ssl") is not None or shared:
            return server
        # Duplicates, because a descriptor can be watched only once.
        duplicates = [socket.fromfd(s.fileno(), s.family, s.type) for s in server.sockets]  # type: ignore[attr-defined]
        for listening in duplicates:
            self._accept_from(listening, protocol_factory)
        return _Server(self, server, duplicates)

    def _accept_from(self, listening: socket.socket, protocol_factory: Callable[[], Any]) -> None:
        listening.setblocking(False)
        connecting: set[asyncio.Task[Any]] = set()

        def accept() -> None:
            with suppress(OSError):  # nobody waits any more, or no descriptors are left
                for _ in range(_AT_ONCE):
                    connection, _ = listening.accept()
                    connection.setblocking(False)
                    task = self.create_task(self.connect_accepted_socket(protocol_factory, connection))
                    connecting.add(task)
                    task.add_done_callback(connecting.discard)

        self.add_reader(listening, accept)


class _Server:
    """A server that closes the duplicates of its sockets with them.

    As long as one is open, the kernel completes handshakes of connections that nobody will serve.
    """

    def __init__(self, loop: AcceptingLoop, server: Any, duplicates: list[socket.socket]) -> None:
        self._loop, self._server, self._duplicates = loop, server, duplicates

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def close(self) -> None:
        self._server.close()
        while self._duplicates:
            listening = self._duplicates.pop()
            self._loop.remove_reader(listening)
            listening.close()
