"""Host names that requests may use, checked against DNS rebinding."""

from __future__ import annotations

import ipaddress


class Hosts:
    """Host headers that are ours.

    Args:
        host: where the service listens. On a loopback address only loopback names are accepted, elsewhere any address.
        allowed: further names; `*` allows any.
    """

    def __init__(self, host: str, on_loopback: bool, allowed: tuple[str, ...]) -> None:
        self.on_loopback = on_loopback
        self.names = {"localhost", host.lower(), *(name.lower() for name in allowed)}
        self.any = "*" in allowed or not (on_loopback or allowed)
        self._known: dict[str, bool] = {}

    def knows(self, header: str) -> bool:
        """Whether a Host header, with or without a port, is one of ours; a request of HTTP/1.0 may have none."""
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
