"""CUDA's step clock with simulated events, which complete when a simulated device has finished its work."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from profiling.errors import UnavailableError
from profiling.measure import clocks
from profiling.measure.operator_times import profile_operators
from profiling.workload import Workload
from profiling.zoo import build


class Device:
    """A stream and the host's clock; time passes while the host waits, or works for `host_s` per step."""

    def __init__(self) -> None:
        self.now: float = 100.0
        self.ends: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def event(self, enable_timing: bool = False, blocking: bool = False) -> Event:
        assert enable_timing
        assert blocking
        return Event(self)

    def wait(self, until: float) -> None:
        self.now = max(self.now, until)

    def synchronize(self) -> None:
        self.wait(self.ends)

    def step(self, host_s: float) -> None:
        """Queue a step of 10 ms."""
        self.now += host_s
        self.ends = max(self.ends, self.now) + 0.01


class Event:
    def __init__(self, device: Device) -> None:
        self.device = device

    def record(self) -> None:
        self.ends = self.device.ends = max(self.device.ends, self.device.now)

    def synchronize(self) -> None:
        self.device.wait(self.ends)

    def elapsed_time(self, other: Event) -> float:
        assert self.device.now >= other.ends, "elapsed_time of an event that has not ended"
        return 1e3 * (other.ends - self.ends)


@pytest.mark.parametrize("host_s", [0.001, 0.015])
def test_cuda_steps_are_timed_by_their_ends_and_the_host_is_at_most_two_ahead(
    monkeypatch: pytest.MonkeyPatch, host_s: float
) -> None:
    device = Device()
    monkeypatch.setattr(clocks, "time", device)
    monkeypatch.setattr(torch.cuda, "Event", device.event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: device)
    clock = clocks.CudaClock(depth=2)
    start = clock.start()
    queued = []
    for _ in range(6):
        device.step(host_s)
        newest = clock.mark()
        queued.append(device.ends - device.now)
        assert newest <= device.now
    boundaries = clock.finish()
    assert boundaries[0] == start
    assert len(boundaries) == 7
    assert max(queued) <= 0.02 + 1e-9  # never more than one step queued behind the running one
    for before, after in pairwise(boundaries[1:]):
        assert after - before == pytest.approx(max(0.01, host_s))


def test_operator_times_without_kernels_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    with pytest.raises(UnavailableError, match="no kernel"):
        profile_operators(build(Workload("ppo-lunarlander"), "cpu"), "cuda", 1)
