"""Names of all protocols, so that a misspelt one is rejected before anything is imported.

A test keeps the list up to date.
"""

from __future__ import annotations

from collections.abc import Iterable

from profiling.errors import UnknownNameError
from profiling.names import one_of

NAMES = (
    "lucid-random",
    "lucid-by-pair",
    "lucid-by-model",
    "lucid-clean-by-model",
    "lucid-by-model-graph-only",
    "lucid-memory-by-model",
    "lucid-utilization-by-model",
    "lucid-zero-shot",
    "gavel2020-random",
    "gavel2020-by-pair",
    "gavel2020-by-model",
    "gavel2019-random",
    "gavel2019-by-model",
    "gavel-by-device",
    "all-by-model",
    "solo-by-model",
    "timm-train-by-family",
    "timm-infer-by-family",
    "timm-infer-by-device",
    "timm-infer-network-on-device",
    "ecnas-by-cell",
    "ecnas-largest-fifth",
    "lamikr-by-device",
    "lamikr-network-on-device",
    "neusight-operators-by-device",
    "neusight-end-to-end",
    "memory-by-model",
    "memory-schedtune-by-model",
    "memory-schedtune-by-device",
    "memory-gpumemnet-by-family",
    "miso-random",
    "miso-by-model",
    "miso-other-share",
    "miso-other-share-by-model",
    "miso-by-size",
    "miso-slices-by-model",
    "parvagpu-by-model",
    "rapp-by-model",
    "lucid-few-shot",
    "gavel2019-few-shot",
    "gavel2020-few-shot",
    "miso-few-shot",
    "solo-few-shot",
)


def check_name(name: str) -> None:
    """Check the name of a protocol; few-shot protocols count too.

    Raises:
        UnknownNameError: there is none called `name`.
    """
    if name not in NAMES:
        raise unknown_protocol(name, NAMES)


def unknown_protocol(name: str, known: Iterable[str]) -> UnknownNameError:
    """The error for a protocol `name` that is not among `known`."""
    return UnknownNameError(
        "unknown protocol",
        expected=one_of(name, known),
        got=name,
        hint="`cotenant benchmark list` shows all",
    )
