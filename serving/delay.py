"""Shedding by time in the queue: how many requests may wait for the event loop, and what new workloads may take meanwhile."""

from __future__ import annotations

import math
import threading
import time
from contextvars import ContextVar
from typing import Any

from serving.lanes import OverloadError

# When the request that is being handled arrived (`time.perf_counter`).
SINCE: ContextVar[float] = ContextVar("since")
ARRIVED = "cotenant.arrived"  # in the scope of a request that waits for its handler: when it arrived


class DelayLimit:
    """How many requests may wait for the event loop: halved-in-part while they wait too long, raised slowly otherwise.

    Additive increase and multiplicative decrease, as TCP does (Chiu and Jain, 1989), on the time from a request's head
    to the start of its handler, and to its prediction where it asks for one. A request that would exceed the limit is shed.
    A limit that nobody comes near is not raised beyond `START` (RFC 2861 on congestion windows): it was not shown to hold, and
    a sudden crowd would all be let in.
    """

    FLOOR, START, CEILING, STEP, PERIOD_S = 16.0, 64.0, 4096.0, 8.0, 0.05
    SHEDDING, WEIGHT = 0.02, 0.05  # share of requests refused, in the mean of about a second

    def __init__(self, target_s: float) -> None:
        self.target_s = target_s
        self.limit = self.START
        self.waiting = 0
        self._peak, self._worst_s = 0, 0.0
        self._admitted, self._refused, self._refused_ratio = 0, 0, 0.0

    def admit(self) -> bool:
        """Count one request in, or refuse it."""
        if self.full:
            self._peak = max(self._peak, self.waiting)
            return False
        self.waiting += 1
        self._admitted += 1
        self._peak = max(self._peak, self.waiting)
        return True

    def refused(self) -> None:
        """Count a request that was shed."""
        self._refused += 1

    @property
    def shedding(self) -> bool:
        """Whether more comes than can be done: more than one request in fifty was shed in the last second or so."""
        return self._refused_ratio > self.SHEDDING

    @property
    def full(self) -> bool:
        """Whether another request would be refused."""
        return self.waiting >= self.limit

    def wait(self) -> None:
        """Count in a request that was admitted before and waits again."""
        self.waiting += 1
        self._peak = max(self._peak, self.waiting)

    def begun(self, arrived: float) -> None:
        """A request of `arrived` (`time.perf_counter`) waits no longer."""
        self.waiting -= 1
        self._worst_s = max(self._worst_s, time.perf_counter() - arrived)

    def left(self, scope: dict[str, Any]) -> None:
        """A request that may have been admitted will not be handled."""
        if scope.pop(ARRIVED, None) is not None:
            self.waiting -= 1

    def adapt(self, lag_s: float) -> None:
        """Called every `PERIOD_S`; `lag_s` is how late."""
        if max(self._worst_s, lag_s) > self.target_s:
            self.limit = max(self.FLOOR, 0.7 * min(self.limit, max(self._peak, 1)))
        elif self.limit < self.START or self._peak > self.limit / 2:
            self.limit = min(self.CEILING, self.limit + self.STEP)
        self._peak, self._worst_s = self.waiting, 0.0
        ratio = self._refused / max(1, self._refused + self._admitted)
        self._refused_ratio += self.WEIGHT * (ratio - self._refused_ratio)
        self._admitted = self._refused = 0


class SpareTime:
    """What new workloads may take of a core while requests are shed: a capture costs as much as hundreds of predictions.

    Otherwise they are not held back. The mean cost of those that were met says when the next one may begin.

    Args:
        ratio: share of one core.
    """

    MEAN_S, WEIGHT = 0.3, 0.3  # before the first measurement, and the weight of each later one

    def __init__(self, delay: DelayLimit, ratio: float) -> None:
        self.delay, self.ratio = delay, ratio
        self._mean_s, self._next = self.MEAN_S, 0.0
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        """Begin `count` new workloads. Raises `OverloadError`, which says when the next one may be tried."""
        if not self.delay.shedding:
            return
        now = time.perf_counter()
        if now < self._next:
            error = OverloadError(
                "the service is overloaded: new workloads wait", expected="workloads that the model has met",
                hint="try again later",
            )  # fmt: skip
            error.retry_after_s = math.ceil(self._next - now)
            raise error
        self._next = now + count * self._mean_s / self.ratio

    def spent(self, seconds: float, count: int) -> None:
        """Note the processor time that `count` new workloads took."""
        with self._lock:
            self._mean_s += self.WEIGHT * (seconds / count - self._mean_s)
