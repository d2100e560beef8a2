"""The service's address: bound once by the parent, listened on by every worker."""

from __future__ import annotations

import socket
import sys

from profiling.errors import UnavailableError


def check(host: str, port: int) -> None:
    """Check that the address can be bound, before anything is loaded.

    Raises:
        UnavailableError: it cannot; the message is one line.
    """
    try:
        with _socket_for(host, port) as probe:
            probe.bind(_resolved(host, port)[1])
    except (OSError, UnicodeError) as error:
        raise UnavailableError(
            f"cannot listen on {host} port {port}",
            expected="an address of this machine and a free port",
            got=getattr(error, "strerror", None) or error,
            hint="set others with --host and --port",
        ) from None


def reserve(host: str, port: int) -> socket.socket:
    """Bind a socket for the workers; nothing connects to it.

    On Linux each worker listens on its own socket at this address (SO_REUSEPORT), and the kernel spreads
    connections over them. Elsewhere the option does not spread connections, so the workers share this socket.
    """
    if sys.platform != "linux":
        shared = _socket_for(host, port)
        shared.bind(_resolved(host, port)[1])
        return shared
    # Without SO_REUSEADDR if possible, so that the check of a second service started meanwhile fails. With it if
    # connections that a single-worker service left in TIME_WAIT block the address.
    for reuse in (False, True):
        reserved = _socket_for(host, port, reuse)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            reserved.bind(_resolved(host, port)[1])
            break
        except OSError:
            reserved.close()
            if reuse:
                raise
    return reserved


def is_spread(reserved: socket.socket) -> bool:
    """Whether each worker may listen on its own socket at that address."""
    return sys.platform == "linux" and bool(reserved.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT))


def listen_beside(reserved: socket.socket) -> socket.socket:
    """A socket at the same address as `reserved`; the caller listens on it."""
    own = socket.socket(reserved.family, reserved.type)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    own.bind(reserved.getsockname())
    return own


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, tuple[object, ...]]:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return family, address


def _socket_for(host: str, port: int, reuse: bool = True) -> socket.socket:
    unbound = socket.socket(_resolved(host, port)[0], socket.SOCK_STREAM)
    unbound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
    return unbound
