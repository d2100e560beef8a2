"""Accepted host names, against DNS rebinding, and addresses of trusted proxies."""

from __future__ import annotations

import ipaddress
import re

from profiling.errors import InputError


class Hosts:
    """Checks Host headers.

    Args:
        host: address that the service listens on. If it is a loopback address, only loopback names are
            accepted, otherwise any address.
        allowed: additional names; `*` allows any.

    Raises:
        InputError: not a name, such as a URL, a name with a port, or a pattern: it would never match.
    """

    def __init__(self, host: str, on_loopback: bool, allowed: tuple[str, ...]) -> None:
        for name in allowed:
            if name != "*" and (name.count(":") == 1 or not re.fullmatch(r"[\w.:-]+", name)):
                raise InputError(
                    "allowed host is not a name",
                    expected="a host name without scheme and port, or * for any",
                    got=name,
                )
        self.on_loopback = on_loopback
        self.names = {"localhost", host.lower(), *(name.lower() for name in allowed)}
        self.any = "*" in allowed or not (on_loopback or allowed)
        self._known: dict[str, bool] = {}

    def knows(self, header: str) -> bool:
        """Whether to accept a Host header, with or without a port; an HTTP/1.0 request may have none."""
        if self.any or not header:
            return True
        answer = self._known.get(header)
        if answer is None:
            answer = self._is_ours(header.lower())
            if len(self._known) < 1000:
                self._known[header] = answer
        return answer

    def _is_ours(self, header: str) -> bool:
        name = header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0]
        if name in self.names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback if self.on_loopback else True


class Proxies:
    """Addresses whose `X-Forwarded-For` and `-Proto` are trusted.

    Args:
        trusted: addresses, and networks such as `10.0.0.0/8`.

    Raises:
        InputError: not an address or network; names are not resolved.
    """

    def __init__(self, trusted: tuple[str, ...]) -> None:
        self.networks = []
        for text in trusted:
            try:
                self.networks.append(ipaddress.ip_network(text))
            except ValueError:
                raise InputError(
                    "trusted proxy is not an address",
                    expected="an IP address or a network, such as 10.0.0.7 or 10.0.0.0/8",
                    got=text,
                ) from None
        self._known: dict[str, bool] = {}

    def __bool__(self) -> bool:
        return bool(self.networks)

    def client_of(self, forwarded: str) -> str:
        """The client in an `X-Forwarded-For`: the last address that is not itself a trusted proxy's.

        Those before it are what the client says. Empty without any address.
        """
        client = ""
        for client in reversed([_address(part.strip()) for part in forwarded.split(",") if part.strip()]):
            if not self.trusts(client):
                break
        return client

    def trusts(self, client: str) -> bool:
        """Whether this address belongs to a trusted proxy."""
        answer = self._known.get(client)
        if answer is None:
            try:
                address = ipaddress.ip_address(client)
                # A socket that listens on `::` sees IPv4 clients as `::ffff:10.0.0.1`.
                plain = getattr(address, "ipv4_mapped", None) or address
                answer = any(plain in network or address in network for network in self.networks)
            except ValueError:
                answer = False
            if len(self._known) < 1000:
                self._known[client] = answer
        return answer


def _address(entry: str) -> str:
    """One of `X-Forwarded-For` without the port and brackets that some proxies add: each connection has another port."""
    if entry.startswith("["):
        return entry[1:].partition("]")[0]
    return entry.partition(":")[0] if entry.count(":") == 1 else entry
