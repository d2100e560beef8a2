"""How much at once: requests in flight, requests per second and caller."""

from __future__ import annotations

import math
import time
from collections import OrderedDict

from profiling.errors import CotenantError

_CALLERS = 10_000


class RateError(CotenantError):
    """A caller that asks too often."""

    status = 429
    slug = "too-many-requests"
    title = "Too many requests"

    def __init__(self, wait_s: float) -> None:
        super().__init__("too many requests", hint=f"try again in {wait_s:.1f} s")
        self.retry_after_s = max(1, math.ceil(wait_s))


class RateLimit:
    """A token bucket per caller.

    Args:
        per_s: requests per second in the long run; 0 is no limit.
        burst: requests at once.
    """

    def __init__(self, per_s: float, burst: int) -> None:
        self.per_s, self.burst = per_s, burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str, now: float | None = None) -> None:
        """Count one request. Raises `RateError`."""
        if not self.per_s:
            return
        now = time.monotonic() if now is None else now
        level, last = self._buckets.pop(caller, (float(self.burst), now))
        level = min(self.burst, level + (now - last) * self.per_s)
        allowed = level >= 1
        self._buckets[caller] = (level - 1 if allowed else level, now)
        while len(self._buckets) > _CALLERS:
            self._buckets.popitem(last=False)
        if not allowed:
            raise RateError((1 - level) / self.per_s)
