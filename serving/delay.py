"""Load shedding by queueing time.

Decides how many requests may wait for the event loop, and how much time new workloads get meanwhile.
"""

from __future__ import annotations

import math
import threading
import time
from contextvars import ContextVar
from typing import Any

from serving.lanes import OverloadError

# Arrival time of the current request (`time.perf_counter`).
SINCE: ContextVar[float] = ContextVar("since")
ARRIVED = "cotenant.arrived"  # key in the scope of a request waiting for its handler: arrival time


class DelayLimit:
    """How many requests may wait for the event loop: cut while they wait too long, raised slowly otherwise.

    Additive increase and multiplicative decrease, as TCP does (Chiu and Jain, 1989), on the time from a
    request's head to the start of its handler, and to its prediction if it asks for one. A request that would
    exceed the limit is shed. A limit that is not reached is not raised beyond `START` (cf. RFC 2861 on congestion
    windows), because an untested one would admit a whole burst.
    """

    FLOOR, START, CEILING, STEP, PERIOD_S = 16.0, 64.0, 4096.0, 8.0, 0.05
    SHEDDING, WEIGHT = 0.02, 0.05  # share of requests refused, averaged over about a second

    def __init__(self, target_s: float) -> None:
        self.target_s = target_s
        self.limit = self.START
        self.waiting = 0
        self._peak, self._worst_s = 0, 0.0
        self._admitted, self._refused, self._refused_ratio = 0, 0, 0.0

    def admit(self) -> bool:
        """Admit and count a request, or refuse it."""
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
        """Whether the service is overloaded: over a fiftieth of the requests of the last second or so was shed."""
        return self._refused_ratio > self.SHEDDING

    @property
    def full(self) -> bool:
        """Whether another request would be refused."""
        return self.waiting >= self.limit

    def wait(self) -> None:
        """Count a request again that was admitted earlier and waits once more."""
        self.waiting += 1
        self._peak = max(self._peak, self.waiting)

    def begun(self, arrived: float) -> None:
        """A request that arrived at `arrived` (`time.perf_counter`) has stopped waiting."""
        self.waiting -= 1
        self._worst_s = max(self._worst_s, time.perf_counter() - arrived)

    def left(self, scope: dict[str, Any]) -> None:
        """A request that may have been admitted will not be handled."""
        if scope.pop(ARRIVED, None) is not None:
            self.waiting -= 1

    def adapt(self, lag_s: float) -> None:
        """Called every `PERIOD_S`; `lag_s` is the delay of the call."""
        if max(self._worst_s, lag_s) > self.target_s:
            self.limit = max(self.FLOOR, 0.7 * min(self.limit, max(self._peak, 1)))
        elif self.limit < self.START or self._peak > self.limit / 2:
            self.limit = min(self.CEILING, self.limit + self.STEP)
        self._peak, self._worst_s = self.waiting, 0.0
        ratio = self._refused / max(1, self._refused + self._admitted)
        self._refused_ratio += self.WEIGHT * (ratio - self._refused_ratio)
        self._admitted = self._refused = 0


class SpareTime:
    """Limits new workloads to a share of a core while requests are shed.

    A capture costs as much as hundreds of predictions.

    Otherwise they are not limited. The mean cost so far determines when the next one may begin.

    Args:
        ratio: share of one core.
    """

    MEAN_S, WEIGHT = 0.3, 0.3  # initial value, and the weight of each later measurement

    def __init__(self, delay: DelayLimit, ratio: float) -> None:
        self.delay, self.ratio = delay, ratio
        self._mean_s, self._next = self.MEAN_S, 0.0
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        """Begin `count` new workloads. Raises `OverloadError`, which says when to try again."""
        if not self.delay.shedding:
            return
        now = time.perf_counter()
        if now < self._next:
            error = OverloadError(
                "the service is overloaded: new workloads wait", expected="workloads that the model has seen",
                hint="try again later",
            )  # fmt: skip
            error.retry_after_s = math.ceil(self._next - now)
            raise error
        self._next = now + count * self._mean_s / self.ratio

    def spent(self, seconds: float, count: int) -> None:
        """Note the processor time that `count` new workloads took."""
        with self._lock:
            self._mean_s += self.WEIGHT * (seconds / count - self._mean_s)
