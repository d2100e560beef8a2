"""Clocks that record when each training step ended, in time that all processes of a machine share."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Protocol


class StepClock(Protocol):
    """Records when steps end."""

    def start(self) -> float:
        """Start recording. Returns the time, in seconds on the shared clock."""
        ...

    def mark(self) -> float:
        """Record a step that was issued. Returns when the latest step known to be complete ended, in seconds."""
        ...

    def finish(self) -> list[float]:
        """Returns the start and the end of every step, in seconds on the shared clock."""
        ...


class HostClock:
    """Clock for the CPU, where a step has ended when `step()` returns; `time.monotonic` is shared by all processes."""

    def start(self) -> float:
        self.boundaries = [time.monotonic()]
        return self.boundaries[0]

    def mark(self) -> float:
        self.boundaries.append(time.monotonic())
        return self.boundaries[-1]

    def finish(self) -> list[float]:
        return self.boundaries


class CudaClock:
    """CUDA events at the end of every step, aligned with the host clock once at the start.

    The stream is synchronised only at the start and end of a window. In between, the host waits for the event `depth`
    steps back, so at most `depth` steps are queued: measuring never makes the device wait for the host. No call
    synchronises the whole device, which would also wait for the co-located jobs.
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

        # Blocking: a waiting host sleeps instead of spinning on a core that another job's input pipeline needs.
        event = torch.cuda.Event(enable_timing=True, blocking=True)
        event.record()
        return event


def clock_for(device: str) -> StepClock:
    return CudaClock() if device == "cuda" else HostClock()
