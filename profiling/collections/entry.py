"""`Entry`: a network of a collection as its library builds it; needed for rebuilding only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Maker = Callable[[int, str], Any]
"""`(batch_size, precision) -> TrainingJob` on `meta`."""


@dataclass(frozen=True)
class Entry:
    """One name with everything that it takes to record its graph.

    Attributes:
        name: within the collection.
        family: what splits by family go by: the library's module that defines it.
        sizes: image sizes (or sequence lengths) to record, the default first; 0 where there is no such thing.
        makers: `(size)` to ways to make its jobs, of which the first that can be recorded counts.
        precisions: to record.
        alias_of: name with the same network, in whose place it is never recorded itself.
    """

    name: str
    family: str
    sizes: tuple[int, ...]
    makers: Callable[[int], Iterator[Maker]]
    alias_of: str = ""
    precisions: tuple[str, ...] = ("fp32", "amp")
