"""A job's own agent: tunes its batch, stores its observations, and fits its models, which policies read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np

from predictor.types import Floats
from scheduling.core.job import TraceJob
from scheduling.sia.application import MICROBATCHES, Application
from scheduling.sia.goodput import best_batch, efficiency
from scheduling.sia.throughput import ThroughputParams, accumulation_s, fit, network_s


class Observation(NamedTuple):
    """Observed steps of a job from `since_s` on: seconds per step and of its exposed synchronisation."""

    since_s: float
    device: str
    placement: tuple[int, ...]
    step_s: float
    sync_s: float
    gradient: tuple[float, float]


class Agent:
    """Observations and models of one job.

    Attributes:
        profiles: per type, (nodes, replicas, local batch) -> (step, sync) seconds.
        gradient: last squared norm and variance; None before the first step.
        epoch: number of epochs done.
        local_batch, accumulation: what the job currently runs with.
        running: the observation that it will have made once it has run like this for a while.
    """

    def __init__(self, job: TraceJob, application: Application) -> None:
        self.job, self.application = job, application
        self.profiles: dict[str, dict[tuple[int, int, int], tuple[float, float]]] = {
            d: {} for d in application.on
        }
        self._params: dict[str, ThroughputParams] = {}
        self._observed: dict[str, None] = {}  # types with points not yet in their model, in order
        self.gradient: tuple[float, float] | None = None
        self.epoch = 0
        self.running: Observation | None = None
        self.local_batch = self.accumulation = 0
        self.version = 0  # counts changes of the models' inputs

    @property
    def params(self) -> dict[str, ThroughputParams]:
        """Per type, the fitted model if there are observations; fitted on access."""
        for device in self._observed:
            self._params[device] = fit(self.profiles[device])
        self._observed.clear()
        return self._params

    @cached_property
    def fixed_batch(self) -> int | None:
        """Total batch of a job that does not tune it."""
        if self.job.kind in ("adaptive", "hybrid"):
            return None
        return self.job.batch_size or self.application.batches[0]

    def tune(self, device: str, placement: tuple[int, ...]) -> None:
        """Choose samples per GPU and accumulation for an allocation.

        They are the fitted model's best, or those of the requested total.
        """
        app, on, replicas = self.application, self.application.on[device], sum(placement)
        if on.stages > 1:
            self.local_batch, self.accumulation = 1, MICROBATCHES - 1
            return
        largest, initial = on.largest_batch(placement), app.batches[0]
        batch = self.fixed_batch
        if batch is None and (self.gradient is None or device not in self.params):
            batch = max(initial, on.local_least * replicas)
        if batch is None:
            assert self.gradient is not None
            limits = app.limits(device)._replace(local_largest=largest)
            best = best_batch(self.params[device], *self.gradient, limits, len(placement), replicas)
            self.local_batch, self.accumulation = int(best.local_batch[0]), int(best.accumulation[0])
        else:
            self.local_batch, self.accumulation = self._divide(batch, replicas, largest)
        measured = on.largest_of_replicas(replicas)
        if measured is not None:
            self.local_batch = min(self.local_batch, measured)
        self.local_batch = min(self.local_batch, int(app.batches[-1] / (replicas * (self.accumulation + 1))))

    def _divide(self, batch: int, replicas: int, largest: int) -> tuple[int, int]:
        """Samples per GPU and accumulation steps of a total batch, with at most `largest` samples on a GPU at
        a time."""
        local = math.ceil(batch / replicas - 1e-8)
        accumulation = math.ceil(local / largest - 1e-8) - 1
        if replicas == 1 and batch > self.application.batches[0]:
            accumulation = max(1, accumulation)
        return math.ceil(local / (accumulation + 1) - 1e-8), accumulation

    def submitted_steps_per_s(self, device: str, node_size: int) -> float:
        """Measured steps per second with the submitted batch and number of GPUs, on full nodes.

        0 if the application was not measured on that type or the GPUs do not suit its pipeline stages.
        """
        on = self.application.on.get(device)
        gpus = self.job.gpus
        if on is None or gpus % on.stages:
            return 0.0
        full, rest = divmod(gpus, node_size)
        placement = (node_size,) * full + ((rest,) if rest else ())
        if on.stages > 1:
            return 1.0 / on.times_s(placement, 1)[0]
        batch = self.job.batch_size or self.application.batches[0]
        local, accumulation = self._divide(batch, gpus, on.largest_batch(placement))
        if gpus == 1 and accumulation == 0:  # as in Sia's artifact: a single GPU always accumulates
            local, accumulation = math.ceil(batch / 2 - 1e-8), 1
        step, sync = on.times_s(placement, local)
        return 1.0 / (step + (step - sync) * accumulation)

    def take_in(self, now_s: float, resumed_s: float) -> None:
        """Record the steps up to now.

        A batch chosen at this moment, or just before a restart, has not run yet.

        Args:
            now_s: current time.
            resumed_s: when the job was last started.
        """
        seen, self.running = self.running, None
        if seen is not None and resumed_s <= seen.since_s < now_s:
            self.observe(*seen[1:])

    def observe(
        self,
        device: str,
        placement: tuple[int, ...],
        step_s: float,
        sync_s: float,
        gradient: tuple[float, float],
    ) -> None:
        """Record a running step."""
        if gradient != self.gradient:
            self.gradient = gradient
            self.version += 1
        key = (len(placement), sum(placement), self.local_batch)
        if key not in self.profiles[device]:
            self.profiles[device][key] = (step_s, sync_s)
            self._observed[device] = None
            self.version += 1

    def batch(self, placement: tuple[int, ...], device: str) -> int:
        """Total batch with which the job runs."""
        replicas = sum(placement) // self.application.on[device].stages
        return replicas * self.local_batch * (self.accumulation + 1)

    def most_gpus(self) -> int:
        """GPUs that it may get next: twice the number observed, within its batch range.

        A strong-scaling job never gets more than it requested. For a hybrid job, they are replicas.
        """
        if self.job.kind == "rigid":
            return self.job.gpus
        on = self.application.on
        seen = max(
            (key[1] // on[d].stages for d, profile in self.profiles.items() for key in profile), default=0
        )
        most = min(max(2 * seen, 1), self.job.gpus if self.job.kind == "strong-scaling" else 64)
        limits = [self.application.limits(d) for d in on]
        return max(min(most, lim.largest // max(lim.local_least, 1)) for lim in limits)

    def goodput(
        self, device: str, nodes: Floats, replicas: Floats, node_size: Mapping[str, int]
    ) -> Floats | None:
        """[C] predicted goodput on a type, transferred from another type if there is no model of it yet.

        T(N, A) = T(1, A) / T(1, B) * T(N, B), where B is the cluster's first type with a model, and N GPUs
        are on as many nodes of B as they take there; None while no type has a model.

        Args:
            device: the type.
            nodes, replicas: [C].
            node_size: GPUs of a node of each type.
        """
        if self.gradient is None or not self.params or device not in self.application.on:
            return None
        params = self.params
        source = device if device in params else next(d for d in self.application.on if d in params)
        on, other = self.application.on[device], self.application.on[source]
        if source != device:
            nodes = np.ceil(np.asarray(replicas) * other.stages / node_size[source])
        ratio = 1.0 if source == device else on.single_samples_per_s / other.single_samples_per_s
        if other.stages > 1 or on.stages > 1:
            return ratio * self._hybrid(source, nodes, replicas)
        limits = self.application.limits(source)
        # The scheduler values a job up to its submitted batch; the job itself may go beyond.
        asked = max(self.job.batch_size or limits.largest, limits.initial)
        limits = limits._replace(largest=min(limits.largest, asked))
        if self.job.kind == "rigid":  # it runs with its batch, however few samples that leaves each GPU
            limits = limits._replace(local_least=1)
        best = best_batch(self.params[source], *self.gradient, limits, nodes, replicas, self.fixed_batch)
        return ratio * best.goodput

    def _hybrid(self, device: str, nodes: Floats, replicas: Floats) -> Floats:
        """Data-parallel pipelines: throughput from the type's table, at one micro-batch size."""
        params, stages = self.params[device], self.application.on[device].stages
        compute = accumulation_s(params, 1) if stages == 1 else accumulation_s(params, MICROBATCHES)
        step = compute + network_s(params, nodes, replicas)
        total = np.asarray(replicas, float) * MICROBATCHES
        assert self.gradient is not None
        value: Floats = total / step * efficiency(total, self.application.batches[0], *self.gradient)
        return np.where(total <= self.application.batches[-1], value, 0.0)
