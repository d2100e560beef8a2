"""CUDA's step clock against events that end when a pretended device has worked through them."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import pytest
import torch

from profiling.errors import UnavailableError
from profiling.measure.clocks import CudaClock
from profiling.measure.operator_times import profile_operators
from profiling.workload import Workload
from profiling.zoo import build


class Device:
    """A stream: every event ends 10 ms after the one before it was begun to be worked on."""

    def __init__(self) -> None:
        self.ends: float = 0.0
        self.waits: list[Any] = []

    def event(self, enable_timing: bool = False, blocking: bool = False) -> Event:
        assert enable_timing
        assert blocking
        return Event(self)

    def synchronize(self) -> None:
        time.sleep(max(0.0, self.ends - time.monotonic()))


class Event:
    def __init__(self, device: Device) -> None:
        self.device = device

    def record(self) -> None:
        self.ends = self.device.ends = max(self.device.ends, time.monotonic())

    def synchronize(self) -> None:
        self.device.waits.append(self)
        time.sleep(max(0.0, self.ends - time.monotonic()))

    def elapsed_time(self, other: Event) -> float:
        assert time.monotonic() >= other.ends - 1e-3, "elapsed_time of an event that has not ended"
        return 1e3 * (other.ends - self.ends)


def test_cuda_steps_are_timed_by_their_ends_and_the_host_is_at_most_two_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Device()
    monkeypatch.setattr(torch.cuda, "Event", device.event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: device)
    clock = CudaClock(depth=2)
    start = clock.start()
    issued = []
    for _ in range(6):
        device.ends = max(device.ends, time.monotonic()) + 0.01  # a step of 10 ms is queued
        newest = clock.mark()
        issued.append(device.ends - time.monotonic())
        assert newest <= time.monotonic()
    boundaries = clock.finish()
    assert boundaries[0] == start
    assert len(boundaries) == 7
    assert max(issued) < 0.035  # never more than two steps queued behind the running one
    for before, after in pairwise(boundaries[1:]):
        assert after - before == pytest.approx(0.01, abs=2e-3)


def test_operator_times_without_kernels_are_an_error_and_not_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    with pytest.raises(UnavailableError, match="no kernel"):
        profile_operators(build(Workload("ppo-lunarlander"), "cpu"), "cuda", 1)
