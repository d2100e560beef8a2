"""Placers for the clusters that requests describe."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from scheduling.placement.place import Placer

_KEPT = 4


class Aside:
    """Lends a placer to each request, so that none waits for another's.

    A placer remembers the request's cluster from one job of its queue to the next, and takes one call at a time. A few
    are kept with the sets that they have seen, for the next requests.
    """

    def __init__(self, make_placer: Callable[[], Placer]) -> None:
        self._make = make_placer
        self._free: list[Placer] = []

    @contextmanager
    def placer(self) -> Iterator[Placer]:
        """A placer that nobody else uses."""
        placer = self._free.pop() if self._free else self._make()
        try:
            yield placer
        except asyncio.CancelledError:
            raise  # a thread may still be using it
        except BaseException:
            self._keep(placer)
            raise
        self._keep(placer)

    def _keep(self, placer: Placer) -> None:
        if len(self._free) < _KEPT:
            self._free.append(placer)
