"""`Entry`: a network of a collection as built by its library; only needed for rebuilding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Maker = Callable[[int, str], Any]
"""`(batch_size, precision) -> TrainingJob` on `meta`."""


@dataclass(frozen=True)
class Entry:
    """One name with everything needed to record its graph.

    Attributes:
        name: within the collection.
        family: unit of splits by family: the library's module that defines it.
        sizes: image sizes (or sequence lengths) to record, the default first; 0 if there is no such option.
        makers: maps `(size)` to ways to make its jobs; the first that can be recorded is used.
        precisions: to record.
        alias_of: name of the same network, which is recorded instead.
    """

    name: str
    family: str
    sizes: tuple[int, ...]
    makers: Callable[[int], Iterator[Maker]]
    alias_of: str = ""
    precisions: tuple[str, ...] = ("fp32", "amp")
