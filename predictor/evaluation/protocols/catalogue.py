"""The named protocols, from one module for each kind of measurement."""

from __future__ import annotations

from predictor.evaluation.protocols import published, sets
from predictor.evaluation.protocols.protocol import Protocol, Trial, make_trial
from profiling.errors import UnknownNameError

__all__ = ["PROTOCOLS", "Protocol", "Trial", "get_protocol", "make_trial"]

PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol for module in (sets, published) for protocol in module.PROTOCOLS
}


def get_protocol(name: str) -> Protocol:
    """The protocol called `name`.

    Raises:
        UnknownNameError: there is none.
    """
    if name not in PROTOCOLS:
        raise UnknownNameError("no such protocol", expected="one of " + ", ".join(PROTOCOLS), got=name)
    return PROTOCOLS[name]
