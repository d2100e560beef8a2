"""`layer_throughput`: training speed of a job whose first k atomic layers are frozen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from predictor.examples.featurizer import Featurizer, JobOnDevice, shared_featurizer
from predictor.fitted.device_memory import HeadCalibration, member_memory_bytes
from predictor.freezing.allreduce import Exchange
from predictor.freezing.frozen_steps import FrozenSteps, StepParts
from predictor.freezing.layer_times import LayerTimes, layer_times
from predictor.freezing.measured_prefixes import MeasuredPrefixes
from profiling.devices import DeviceSpec, get_device
from profiling.errors import InputError
from profiling.workload import SoloProfile, Workload

CACHE_BYTES_PER_S = 6e9
# Between nodes, one direction.
NETWORK_BYTES_PER_S = 1.25e9
NOTHING: Mapping[int, SoloProfile] = MappingProxyType({})


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
    measured: Mapping[int, SoloProfile] = NOTHING,
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
            are scaled. Measured ones take precedence over it; without any, the cost model's step time is used.
        measured: the same job measured alone with other frozen prefixes. `workload.solo` takes precedence.
        featurizer: provides graphs and costs; the process's shared one if None.
        heads: constants of a process's memory.

    Returns:
        On one GPU without a cache, the step time and memory of a prediction for the job with this
        `frozen_prefix`, or what was measured with it. Without a cache, the step time is non-increasing in
        `frozen_prefix` on one GPU and, if `rewrapped`, on several, unless measurements contradict that.

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
    solo = {max(prefix, least): profile for prefix, profile in measured.items()}
    solo[measured_at] = _both(workload.solo, solo.get(measured_at, SoloProfile()))
    step_s = {prefix: s for prefix, profile in solo.items() if (s := profile.step_time_s) is not None}
    if not step_s and anchor_step_time_s:
        step_s = {measured_at: anchor_step_time_s}

    def cost_s(prefix: int) -> float:
        return job(prefix).cost.step_time_s

    is_training = workload.mode == "training"

    def step(prefix: int, cache_rate: float | None = None) -> StepParts:
        stretch = MeasuredPrefixes(step_s, cost_s).scaled(prefix) / cost_s(prefix) if step_s else 1.0
        parts = FrozenSteps.of(job, times, stretch).parts(prefix, cache_rate)
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
        memory_bytes=_memory_bytes(job, k, solo, heads),
        anchored=bool(step_s),
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


def _both(stated: SoloProfile, observed: SoloProfile) -> SoloProfile:
    """What was observed where nothing is stated."""
    missing = {f.name: getattr(observed, f.name) for f in fields(stated) if getattr(stated, f.name) is None}
    return replace(stated, **missing)


def _memory_bytes(
    job: Callable[[int], JobOnDevice], k: int, solo: Mapping[int, SoloProfile], heads: HeadCalibration
) -> float:
    """Predicted memory with k layers frozen.

    A measurement at another prefix is shifted by the difference between the two predictions.
    """

    def predicted(prefix: int) -> float:
        return member_memory_bytes(job(prefix), SoloProfile(), heads)

    measured = {prefix: m for prefix, profile in solo.items() if (m := profile.memory_bytes) is not None}
    if not measured:
        return predicted(k)
    if k in measured:
        return measured[k]
    return max(MeasuredPrefixes(measured, predicted).moved(k), job(k).demand.state_bytes)


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
