"""Limits on concurrent requests, and on requests per second and caller."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from cachetools import LRUCache

from profiling.errors import CotenantError
from serving.lanes import OverloadError

_CALLERS = 10_000


class RateError(CotenantError):
    """The caller sends too many requests."""

    status = 429
    slug = "too-many-requests"
    title = "Too many requests"

    def __init__(self, wait_s: float) -> None:
        super().__init__("too many requests", hint=f"try again in {wait_s:.1f} s")
        self.retry_after_s = max(1, math.ceil(wait_s))


class Slots:
    """At most `count` concurrent requests."""

    def __init__(self, count: int) -> None:
        self.count, self.taken = count, 0

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold a slot. Raises `OverloadError` if all are taken."""
        if self.taken >= self.count:
            raise OverloadError("the service is busy", hint="try again in a second")
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1


class RateLimit:
    """A token bucket per caller.

    Args:
        per_s: sustained requests per second; 0 for no limit.
        burst: requests in a burst.
    """

    def __init__(self, per_s: float, burst: int) -> None:
        self.per_s, self.burst = per_s, burst
        self._buckets: LRUCache[str, tuple[float, float]] = LRUCache(_CALLERS)

    def take(self, caller: str, now: float | None = None) -> None:
        """Count one request. Raises `RateError`."""
        if self.per_s:
            self.check(caller, now)
            self.spend(caller, now)

    def check(self, caller: str, now: float | None = None) -> None:
        """Raise `RateError` if `caller` has no tokens left."""
        level = self._level(caller, time.monotonic() if now is None else now)
        if level < 1:
            raise RateError((1 - level) / self.per_s)

    def spend(self, caller: str, now: float | None = None) -> None:
        """Count one."""
        now = time.monotonic() if now is None else now
        self._buckets[caller] = (max(0.0, self._level(caller, now) - 1), now)

    def _level(self, caller: str, now: float) -> float:
        level, last = self._buckets.get(caller, (float(self.burst), now))
        return min(float(self.burst), level + (now - last) * self.per_s)
