"""The parts of a job's step on one GPU, by frozen prefix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from predictor.examples.featurizer import JobOnDevice
from predictor.freezing.layer_times import LayerTimes
from profiling.errors import InputError


class StepParts(NamedTuple):
    """Seconds of the parts of a step."""

    forward_s: float
    backward_s: float
    optimizer_s: float
    overhead_s: float
    exchange_s: float = 0.0

    @property
    def step_time_s(self) -> float:
        return self.forward_s + self.backward_s + self.optimizer_s + self.overhead_s + self.exchange_s


@dataclass(frozen=True, slots=True, eq=False)
class FrozenSteps:
    """Steps of a job on one GPU.

    The step time is the cost model's; the layers' times only divide the device's part of it. What freezing
    saves beyond the optimiser is taken off the backward pass. Rescaling all parts instead would shorten the
    backward pass by more than the step, and an overlapping exchange would then cost more than was saved.

    Attributes:
        job: the job with a frozen prefix.
        times: times of its layers, with nothing frozen.
        stretch: factor on the cost model's step times.
        overhead_s: what the host adds to a step, stretched.
        scale: factor on the layers' times.
    """

    job: Callable[[int], JobOnDevice]
    times: LayerTimes
    stretch: float
    overhead_s: float
    scale: float

    @classmethod
    def of(cls, job: Callable[[int], JobOnDevice], times: LayerTimes, stretch: float) -> FrozenSteps:
        """Scale the layers' times to the step with as little frozen as when the graph was captured.

        Raises:
            InputError: no layer takes any time.
        """
        unfrozen = job(0)
        overhead_s = stretch * (unfrozen.cost.overhead_s + unfrozen.cost.host_s)
        on_layers = sum(times.split(unfrozen.graph.frozen_prefix)[:3])
        if not on_layers:
            raise InputError(
                f"{unfrozen.workload.model} has no work in any layer",
                expected="a graph whose operators compute or move something",
            )
        scale = (stretch * unfrozen.cost.step_time_s - overhead_s) / on_layers
        return cls(job, times, stretch, overhead_s, scale)

    def parts(self, frozen_prefix: int, cache_bytes_per_s: float | None = None) -> StepParts:
        """The step with a frozen prefix, whose output may come from a cache of activations."""
        on_device = self.stretch * self.job(frozen_prefix).cost.step_time_s - self.overhead_s
        forward, _, optimizer, _ = (self.scale * part for part in self.times.split(frozen_prefix))
        shrunk = min(1.0, on_device / (forward + optimizer))
        forward, optimizer = shrunk * forward, shrunk * optimizer
        backward = max(on_device - forward - optimizer, 0.0)  # the rest, but for rounding
        if cache_bytes_per_s is not None:
            forward = shrunk * self.scale * self.times.split(frozen_prefix, cache_bytes_per_s)[0]
        return StepParts(forward, backward, optimizer, self.overhead_s)
