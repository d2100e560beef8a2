"""`layer_throughput`: training speed of a job whose first k atomic layers are frozen."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from predictor.examples.featurizer import Featurizer, JobOnDevice, shared_featurizer
from predictor.fitted.device_memory import HeadCalibration, member_memory_bytes
from predictor.freezing.allreduce import Exchange
from predictor.freezing.frozen_steps import FrozenSteps, StepParts
from predictor.freezing.layer_times import LayerTimes, layer_times
from profiling.devices import DeviceSpec, get_device
from profiling.errors import InputError
from profiling.workload import SoloProfile, Workload

CACHE_BYTES_PER_S = 6e9
# Between nodes, one direction.
NETWORK_BYTES_PER_S = 1.25e9


@dataclass(frozen=True, slots=True)
class LayerThroughput:
    """One step of a job with a frozen prefix. Times are per step; `samples_per_s` is over all GPUs.

    Attributes:
        speedup: throughput relative to the same job with nothing frozen (but what was frozen when its graph
            was captured), on the same GPUs.
        memory_bytes: per GPU, context included.
        anchored: whether times were scaled to a given step time, measured or predicted.
    """

    workload: str
    device: str
    frozen_prefix: int
    total_layers: int
    gpus: int
    nodes: int
    cached: bool
    step_time_s: float
    samples_per_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    exchange_s: float
    overhead_s: float
    unfrozen_parameter_ratio: float
    speedup: float
    memory_bytes: float
    anchored: bool

    def to_json(self) -> dict[str, Any]:
        """The JSON object of `POST /v1/layer-throughput`."""
        return asdict(self)


def layer_throughput(
    workload: Workload,
    device: str,
    frozen_prefix: int | None = None,
    gpus: int = 1,
    cache: bool | float = False,
    *,
    nodes: int = 1,
    rewrapped: bool = True,
    anchor_step_time_s: float | None = None,
    featurizer: Featurizer | None = None,
    heads: HeadCalibration = HeadCalibration(),
) -> LayerThroughput:
    """Predict step time, throughput and memory of `workload` with `frozen_prefix` layers frozen.

    Args:
        workload: its batch size is per GPU; its own `frozen_prefix` is the one at which solo measurements
            were made.
        device: catalogue name.
        frozen_prefix: atomic layers to freeze, at most all; None takes the workload's.
        gpus, nodes: number of data-parallel replicas, and of the nodes that they are on.
        cache: read the prefix's output from a warm activation cache: True, or its rate in bytes/s.
        rewrapped: whether frozen gradients leave the all-reduce (see `predictor.freezing.allreduce`).
        anchor_step_time_s: step time of `workload` alone on one GPU, measured or predicted, to which times
            are scaled. `workload.solo.step_time_s` takes precedence over it; without either, the cost model's
            step time is used.
        featurizer: provides graphs and costs; the process's shared one if None.
        heads: constants of a process's memory.

    Returns:
        On one GPU without a cache, the step time and memory of a prediction for the job with this
        `frozen_prefix`. Without a cache, the step time is non-increasing in `frozen_prefix` on one GPU and,
        if `rewrapped`, on several.

    Raises:
        InputError: a number is out of range, or the model names no atomic layers.
        UnknownNameError: unknown device or model.
    """
    spec = get_device(device)
    rate = _cache_rate(cache)
    _check_replicas(gpus, nodes)
    featurizer = featurizer or shared_featurizer()

    def job(prefix: int) -> JobOnDevice:
        return featurizer.job(replace(workload, frozen_prefix=prefix), device)

    unfrozen_job = job(0)
    graph = unfrozen_job.graph
    times = _times_of(unfrozen_job, replace(workload.without_solo(), frozen_prefix=0))
    k = _checked(frozen_prefix if frozen_prefix is not None else workload.frozen_prefix, times, workload)
    measured_at = _checked(workload.frozen_prefix, times, workload)
    # A graph captured with frozen layers lacks their gradients, so there is no step with fewer.
    least = graph.frozen_prefix
    k, measured_at = max(k, least), max(measured_at, least)
    anchor = workload.solo.step_time_s or anchor_step_time_s
    stretch = anchor / job(measured_at).cost.step_time_s if anchor else 1.0
    steps = FrozenSteps.of(job, times, stretch)
    is_training = workload.mode == "training"

    def step(prefix: int, cache_rate: float | None = None) -> StepParts:
        parts = steps.parts(prefix, cache_rate)
        if gpus == 1 or not is_training:
            return parts
        last_pass_s = parts.backward_s / graph.passes  # gradients are exchanged once, during the last pass
        share = times.trained_ratio(prefix)
        return parts._replace(exchange_s=_exchange_s(times, spec, share, last_pass_s, gpus, nodes, rewrapped))

    frozen = step(k, rate)
    return LayerThroughput(
        workload=str(workload),
        device=spec.name,
        frozen_prefix=k,
        total_layers=times.layers,
        gpus=gpus,
        nodes=nodes,
        cached=rate is not None,
        step_time_s=frozen.step_time_s,
        samples_per_s=gpus * graph.step_samples / frozen.step_time_s,
        **frozen._asdict(),
        unfrozen_parameter_ratio=times.trained_ratio(k) if is_training else 0.0,
        speedup=step(least).step_time_s / frozen.step_time_s,
        memory_bytes=_memory_bytes(job(k), job(measured_at), workload, heads),
        anchored=bool(anchor),
    )


def _check_replicas(gpus: int, nodes: int) -> None:
    for name, value in (("gpus", gpus), ("nodes", nodes)):
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 65536:
            raise InputError(f"{name} is out of range", expected="an integer from 1 to 65536", got=value)
    if nodes > gpus:
        raise InputError("more nodes than GPUs", expected=f"nodes up to {gpus}", got=nodes)


@lru_cache(maxsize=32)
def _times_of(job: JobOnDevice, workload: Workload) -> LayerTimes:
    """Layer times of an unfrozen job, cached because a request asks for many prefixes."""
    return layer_times(job.graph, job.device, workload, cost=job.cost)


def _memory_bytes(
    job: JobOnDevice, measured: JobOnDevice, workload: Workload, heads: HeadCalibration
) -> float:
    """Predicted memory.

    A measurement at another prefix is shifted by the difference between the two predictions.
    """
    predicted = member_memory_bytes(job, SoloProfile(), heads)
    if workload.solo.memory_bytes is None:
        return predicted
    moved = workload.solo.memory_bytes + predicted - member_memory_bytes(measured, SoloProfile(), heads)
    return max(moved, job.demand.state_bytes)


def _checked(prefix: int, times: LayerTimes, workload: Workload) -> int:
    if not isinstance(prefix, int) or isinstance(prefix, bool) or not 0 <= prefix <= times.layers:
        raise InputError(
            f"frozen_prefix of {workload.model} is out of range",
            expected=f"an integer from 0 to {times.layers}, its number of atomic layers",
            got=prefix,
        )
    return prefix


def _cache_rate(cache: bool | float) -> float | None:
    if cache is False or cache is None:
        return None
    rate = CACHE_BYTES_PER_S if cache is True else float(cache)
    if not 0 < rate < float("inf"):
        raise InputError("cache rate is out of range", expected="bytes per second above 0", got=cache)
    return rate


def _exchange_s(
    times: LayerTimes,
    spec: DeviceSpec,
    trained_ratio: float,
    backward_s: float,
    gpus: int,
    nodes: int,
    rewrapped: bool,
) -> float:
    """Seconds of a step spent waiting for the all-reduce; see `Exchange.exposed_s`."""
    inside = max(spec.nvlink_bytes_per_s, spec.pcie_bytes_per_s)
    rate = min(inside, NETWORK_BYTES_PER_S) if nodes > 1 else inside
    # A ring moves each byte twice, less the (n - 1) / n that `Exchange` applies.
    exchange = Exchange(base_s=2.0 * float(times.parameter_bytes.sum()) / rate)
    numbers = (np.array([float(number)]) for number in (trained_ratio, backward_s, gpus, nodes))
    return float(exchange.exposed_s(*numbers, rewrapped=rewrapped)[0])
