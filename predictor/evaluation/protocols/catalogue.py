"""The named protocols, from one module per kind of measurement."""

from __future__ import annotations

from predictor.evaluation.protocols import published, sets
from predictor.evaluation.protocols.names import unknown_protocol
from predictor.evaluation.protocols.protocol import Protocol, Trial, make_trial

__all__ = ["PROTOCOLS", "Protocol", "Trial", "get_protocol", "make_trial"]

PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol for module in (sets, published) for protocol in module.PROTOCOLS
}


def get_protocol(name: str) -> Protocol:
    """Look up the protocol called `name`.

    Raises:
        UnknownNameError: there is none.
    """
    if name not in PROTOCOLS:
        raise unknown_protocol(name, PROTOCOLS)
    return PROTOCOLS[name]
