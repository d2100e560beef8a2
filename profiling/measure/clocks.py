"""When each training step ended, on a clock that all processes of the machine share."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Protocol


class StepClock(Protocol):
    """Marks the ends of steps."""

    def start(self) -> float:
        """Begin; seconds on the shared clock."""
        ...

    def mark(self) -> float:
        """A step was issued; seconds on the shared clock of the newest step known to have ended."""
        ...

    def finish(self) -> list[float]:
        """All boundaries: the start, then the end of every step, in seconds on the shared clock."""
        ...


class HostClock:
    """A CPU step has ended when `step()` returns. `time.monotonic` is one clock for all processes."""

    def start(self) -> float:
        self.boundaries = [time.monotonic()]
        return self.boundaries[0]

    def mark(self) -> float:
        self.boundaries.append(time.monotonic())
        return self.boundaries[-1]

    def finish(self) -> list[float]:
        return self.boundaries


class CudaClock:
    """CUDA events at the end of every step, tied to the host clock once at the start.

    The stream is synchronised at the start and end of a window only. Between, the host waits for the event `depth` steps
    back and so keeps at most `depth` steps queued: the device never waits for the host because of the measuring, and no
    call synchronises the whole device, which would also wait for the neighbours.
    """

    def __init__(self, depth: int = 2) -> None:
        self.depth = depth

    def start(self) -> float:
        import torch

        torch.cuda.current_stream().synchronize()
        self._anchor = self._event()
        self._anchor.synchronize()
        self._host = time.monotonic()
        self._events: list[Any] = []
        self._pending: deque[Any] = deque()
        self._newest = self._host
        return self._host

    def mark(self) -> float:
        event = self._event()
        self._events.append(event)
        self._pending.append(event)
        while len(self._pending) > self.depth:
            self._pending.popleft().synchronize()
            self._newest = time.monotonic()
        return self._newest

    def finish(self) -> list[float]:
        if self._events:
            self._events[-1].synchronize()
        return [self._host, *(self._host + self._anchor.elapsed_time(e) / 1e3 for e in self._events)]

    @staticmethod
    def _event() -> Any:
        import torch

        # blocking: the waiting host sleeps instead of spinning on a core that a neighbour's input pipeline needs
        event = torch.cuda.Event(enable_timing=True, blocking=True)
        event.record()
        return event


def clock_for(device: str) -> StepClock:
    return CudaClock() if device == "cuda" else HostClock()
