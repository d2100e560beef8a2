"""Workers listen on one address, each on its own socket; no other service gets it."""

from __future__ import annotations

import socket
import sys

import pytest

from profiling.errors import UnavailableError
from serving import address


@pytest.mark.skipif(sys.platform != "linux", reason="SO_REUSEPORT spreads connections on Linux only")
def test_connections_are_spread_over_the_workers() -> None:
    with address.reserve("127.0.0.1", 0) as reserved:
        assert address.is_spread(reserved)
        with address.listen_beside(reserved) as first, address.listen_beside(reserved) as second:
            for listening in (first, second):
                listening.listen(512)
                listening.setblocking(False)
            clients = [socket.create_connection(reserved.getsockname()) for _ in range(200)]
            shares = [_waiting(first), _waiting(second)]
            for client in clients:
                client.close()
    assert sum(shares) == 200
    assert min(shares) >= 50, shares  # binomial: seven standard deviations


def _waiting(listening: socket.socket) -> int:
    accepted = 0
    while True:
        try:
            listening.accept()[0].close()
        except BlockingIOError:
            return accepted
        accepted += 1


@pytest.mark.skipif(
    sys.platform != "linux", reason="two sockets that do not listen yet are told apart on Linux only"
)
def test_an_address_that_another_service_has_reserved_is_refused() -> None:
    with address.reserve("127.0.0.1", 0) as reserved, pytest.raises(UnavailableError, match="cannot listen"):
        address.check("127.0.0.1", reserved.getsockname()[1])


def test_an_address_is_free_after_its_service_ended() -> None:
    with address._socket_for(
        "127.0.0.1", 0
    ) as before:  # a service of one worker, which closes its connections first
        before.bind(("127.0.0.1", 0))
        before.listen()
        port = before.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        before.accept()[0].close()
        client.close()
    address.check("127.0.0.1", port)
    with address.reserve("127.0.0.1", port) as reserved, address.listen_beside(reserved) as own:
        own.listen()


def test_a_foreign_host_address_is_refused() -> None:
    with pytest.raises(UnavailableError, match="cannot listen"):
        address.check("192.0.2.1", 0)
