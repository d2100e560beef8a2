"""The workers' event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from serving.address import reserve
from serving.event_loop import AcceptingLoop


@pytest.fixture
def loop() -> Iterator[AcceptingLoop]:
    with closing(AcceptingLoop()) as loop:
        yield loop


@pytest.mark.parametrize("reserved", [False, True])
def test_a_closed_server_refuses_connections(loop: AcceptingLoop, reserved: bool) -> None:
    """They are not accepted by the kernel and then reset, which a proxy takes for a failed request."""

    async def serve_and_close() -> tuple[str, int]:
        if reserved:  # as with several workers
            with reserve("127.0.0.1", 0) as sock:
                server = await loop.create_server(asyncio.Protocol, sock=sock, backlog=8)
        else:
            server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        address: tuple[str, int] = server.sockets[0].getsockname()
        with ExitStack() as stack:
            for _ in range(3):
                stack.enter_context(socket.create_connection(address, timeout=5))
            await asyncio.sleep(0.05)
        server.close()
        await server.wait_closed()
        await asyncio.sleep(0.05)
        return address

    address = loop.run_until_complete(serve_and_close())
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=5)
