"""The named protocols, from one module per kind of measurement."""

from __future__ import annotations

from collections.abc import Sequence

from predictor.evaluation.protocols import published, sets
from predictor.evaluation.protocols.names import unknown_protocol
from predictor.evaluation.protocols.protocol import Protocol, Trial, make_trial
from predictor.evaluation.protocols.registry import Contender, contenders
from profiling.errors import InputError

__all__ = ["PROTOCOLS", "Protocol", "Trial", "get_protocol", "make_trial", "taking_part"]

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


def taking_part(protocol: Protocol, names: Sequence[str] | None = None) -> list[Contender]:
    """The contenders of `protocol`, or those called `names` in that order.

    Raises:
        UnknownNameError: a name is not registered.
        InputError: one that does not take part.
    """
    if names is None:
        return [c for c in contenders() if protocol.admits(c)]
    chosen = contenders(names)
    for contender in chosen:
        if not protocol.admits(contender):
            raise InputError(
                f"{contender.name} does not take part in {protocol.name}",
                expected="one of " + ", ".join(sorted(c.name for c in taking_part(protocol))),
            )
    return chosen
