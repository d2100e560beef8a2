"""All features by name, and their computation from graph, device, options and (masked) solo measurements.

Nothing here is measured under co-location. There are three groups:

* `WORKLOAD_FEATURES`: one job on one device, from its graph and the cost model.
* `SOLO_FEATURES`: the caller's solo measurements; each value comes with a flag that says whether it is
  present.
* `EDGE_FEATURES`: for a pair (target i, source j): how much of each resource both need, as a share of the
  time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.cost.activations import peak_activation_bytes
from models.cost.job import HALF, JobCost, trained_ratio
from profiling.devices import DeviceSpec
from profiling.graph import ComputationGraph
from profiling.workload import Workload

Floats = NDArray[np.float64]

# Resources, in the order of `demand_ratios`: the share of a step for which a job alone occupies each.
RESOURCES = ("gpu", "memory_bandwidth", "compute", "launch", "host")

WORKLOAD_FEATURES = (
    "log_step_s",
    "log_compute_s",
    "log_memory_s",
    "log_launch_s",
    "log_host_s",
    "compute_share",
    "memory_share",
    "launch_share",
    "host_share",
    "log_kernel_count",
    "log_intensity",
    "tensor_core_ratio",
    "log_batch_size",
    "log_parameter_bytes",
    "log_activation_bytes",
    "state_capacity_ratio",
    "frozen_ratio",
    "half_precision",
    "optimizer_state_ratio",
)
SOLO_FEATURES = (
    "has_step_time",
    "log_step_time_s",
    "log_step_over_predicted",
    "log_step_over_launch",
    "log_step_per_sample_s",
    "has_utilization",
    "utilization_ratio",
    "busy_over_predicted",
    "has_memory_bandwidth",
    "memory_bandwidth_ratio",
    "has_memory",
    "memory_capacity_ratio",
)
DEVICE_FEATURES = (
    "log_fp32_flops",
    "log_fp16_flops",
    "log_memory_bandwidth",
    "log_memory_bytes",
    "log_sm_count",
    "log_l2_bytes",
    "is_cpu",
)
# Scalars whose ratio between two members decides which of them waits longer: a device that takes turns by
# kernel or by time slice favours long kernels and many processes.
PACE_FEATURES = ("log_step_time_s", "log_kernel_s", "log_kernel_gap_s", "log_processes")
DEMAND_EDGES = (
    "gpu_product",
    "gpu_excess",
    "memory_bandwidth_product",
    "memory_bandwidth_excess",
    "compute_product",
    "launch_product",
    "host_product",
)
EDGE_FEATURES = (*DEMAND_EDGES, "memory_capacity_sum", *(f"{name}_ratio" for name in PACE_FEATURES))

# Columns of a member's `demand` row, see `edge_features`. The first ones are summed over a member's
# neighbours: demands, share of device memory, and occupancy.
SUMMED_WIDTH = len(RESOURCES) + 2
OCCUPANCY = SUMMED_WIDTH - 1
DEMAND_WIDTH = SUMMED_WIDTH + len(PACE_FEATURES)

# Device memory that a CUDA context and its libraries take before the first tensor.
CONTEXT_BYTES = 450 * 2**20


@dataclass(frozen=True, slots=True)
class Demand:
    """Demand of one job on a device in one step, from the cost model; seconds and bytes.

    Attributes:
        step_s: step time alone.
        busy_s: time in which the device runs a kernel.
        compute_s: arithmetic at peak rate.
        memory_s: traffic at full bandwidth.
        launch_s: time in which the host launches kernels.
        host_s: time in which input is copied from the host.
        state_bytes: parameters, gradients and optimiser state.
        activation_bytes: peak live activations.
    """

    step_s: float
    busy_s: float
    compute_s: float
    memory_s: float
    launch_s: float
    host_s: float
    state_bytes: float
    activation_bytes: float


def demand_of(graph: ComputationGraph, cost: JobCost, device: DeviceSpec, workload: Workload) -> Demand:
    """Demand of one step of a graph; `workload` states mode and frozen prefix.

    Args:
        graph: the job's graph.
        cost: cost of the same job on the same device.
        device: the device.
        workload: the job.
    """
    state_bytes, activation_bytes = memory_of(graph, workload)
    return Demand(
        step_s=cost.step_time_s,
        busy_s=cost.busy_s,
        compute_s=cost.compute_s,
        memory_s=cost.traffic_bytes / device.memory_bandwidth_bytes_per_s,
        launch_s=cost.launch_s,
        host_s=cost.host_s,
        state_bytes=state_bytes,
        activation_bytes=activation_bytes,
    )


def memory_of(graph: ComputationGraph, workload: Workload) -> tuple[float, float]:
    """Bytes of a job's state and of its peak live activations; `workload` states mode and frozen prefix."""
    if workload.mode != "training":
        return graph.parameter_bytes, graph.forward_activation_bytes or graph.activation_bytes * 0.05
    trained = trained_ratio(graph, workload.frozen_prefix)
    state_bytes = graph.parameter_bytes + trained * (graph.gradient_bytes + graph.optimizer_state_bytes)
    return state_bytes, peak_activation_bytes(graph, workload.frozen_prefix)


def workload_features(
    graph: ComputationGraph, device: DeviceSpec, workload: Workload, demand: Demand
) -> Floats:
    """[len(WORKLOAD_FEATURES)] for one job on one device."""
    step = demand.step_s
    frozen = workload.frozen_prefix / len(graph.layers) if graph.layers else 0.0
    return np.array(
        [
            _log(step, 1e-2),
            _log(demand.compute_s, 1e-2),
            _log(demand.memory_s, 1e-2),
            _log(demand.launch_s, 1e-2),
            _log(demand.host_s, 1e-4),
            demand.compute_s / step,
            demand.memory_s / step,
            demand.launch_s / step,
            demand.host_s / step,
            _log(graph.kernel_count, 500.0),
            _log(graph.arithmetic_intensity, 20.0),
            graph.tensor_core_ratio,
            _log(graph.batch_size, 64.0),
            _log(graph.parameter_bytes, 4e7),
            _log(graph.activation_bytes, 1e9),
            min(demand.state_bytes / device.memory_bytes, 2.0),
            min(frozen, 1.0),
            float(workload.precision in HALF),
            graph.optimizer_state_bytes / graph.parameter_bytes if graph.parameter_bytes else 0.0,
        ]
    )


def solo_features(workload: Workload, device: DeviceSpec, demand: Demand) -> Floats:
    """[len(SOLO_FEATURES)]; absent measurements are 0 with flag 0.

    On a CPU, a job's utilisation and resident memory do not indicate how it shares, so they count as absent.
    """
    solo, values = workload.solo, np.zeros(len(SOLO_FEATURES))
    if solo.step_time_s is not None:
        batch = workload.batch_size or 1
        values[:5] = (
            1.0,
            _log(solo.step_time_s, 3e-2),
            _log(solo.step_time_s, demand.step_s),
            _log(solo.step_time_s, demand.launch_s),
            _log(solo.step_time_s / batch, 5e-4),
        )
    if device.is_cpu:
        return values
    if solo.utilization_ratio is not None:
        busy = solo.utilization_ratio * (solo.step_time_s or demand.step_s)
        values[5:8] = 1.0, solo.utilization_ratio, _log(busy, demand.busy_s)
        # Without the utilisation, the bandwidth's share of the step says nothing that was learned.
        if solo.memory_bandwidth_ratio is not None:
            values[8:10] = 1.0, solo.memory_bandwidth_ratio
    if solo.memory_bytes is not None:
        values[10:12] = 1.0, solo.memory_bytes / device.memory_bytes
    return values


def device_features(device: DeviceSpec) -> Floats:
    """[len(DEVICE_FEATURES)] from the data sheet."""
    return np.array(
        [
            _log(device.fp32_flops, 1e13),
            _log(max(device.fp16_flops, device.fp32_flops), 3e13),
            _log(device.memory_bandwidth_bytes_per_s, 7e11),
            _log(device.memory_bytes, 1.6e10),
            _log(device.sm_count, 70.0),
            _log(device.l2_bytes, 5e6),
            float(device.is_cpu),
        ]
    )


def demand_ratios(demand: Demand, step_time_s: float, workload: Workload) -> Floats:
    """[len(RESOURCES)] share of the step for which the job alone demands each resource, 0 to 1.

    Measured utilisations replace the estimates.
    """
    solo = workload.solo
    raw = (
        np.array([demand.busy_s, demand.memory_s, demand.compute_s, demand.launch_s, demand.host_s])
        / step_time_s
    )
    if solo.utilization_ratio is not None:
        raw[0] = solo.utilization_ratio
        if solo.memory_bandwidth_ratio is not None:
            raw[1] = solo.memory_bandwidth_ratio
    return np.clip(raw, 0.0, 1.0)


def capacity_ratio(demand: Demand, workload: Workload, device: DeviceSpec) -> float:
    """Share of the device's memory that the job takes, measured or estimated from its graph."""
    context = 0.0 if device.is_cpu else CONTEXT_BYTES
    taken = workload.solo.memory_bytes or (context + demand.state_bytes + demand.activation_bytes)
    return taken / device.memory_bytes


def occupancy(workload: Workload, device: DeviceSpec) -> float:
    """Largest share of the time for which the job alone keeps the device from others.

    This is its utilisation if measured, else 1. It limits the job's effect on its neighbours, see
    `models.prior.bounded_excess`.
    """
    measured = None if device.is_cpu else workload.solo.utilization_ratio
    return 1.0 if measured is None else min(measured, 1.0)


def pace_of(demand: Demand, step_time_s: float, graph: ComputationGraph) -> Floats:
    """[len(PACE_FEATURES)] logs of step time, mean kernel, mean time between kernels, and processes.

    They describe how a job takes turns with others.
    """
    kernels = max(graph.kernel_count, 1.0)
    processes = float(graph.options.get("processes", 1) or 1)
    # Waiting for input is not part of the rhythm of kernels, so the gap is capped at a multiple of the kernel
    # time.
    gap = min(step_time_s, 8.0 * max(demand.busy_s, demand.launch_s)) / kernels
    return np.log([step_time_s, max(demand.busy_s / kernels, 1e-7), max(gap, 1e-7), processes])


def edge_features(target: NDArray[Any], source: NDArray[Any]) -> NDArray[Any]:
    """[..., len(EDGE_FEATURES)] of target i and source j, from their `demand` rows.

    A row consists of demands [len(RESOURCES)], share of device memory, occupancy, and pace
    [len(PACE_FEATURES)].
    """
    resources = len(RESOURCES)
    product = target[..., :resources] * source[..., :resources]
    excess = np.maximum(target[..., :2] + source[..., :2] - 1.0, 0.0)
    result = np.empty((*product.shape[:-1], len(EDGE_FEATURES)), dtype=product.dtype)
    result[..., 0], result[..., 1] = product[..., 0], excess[..., 0]
    result[..., 2], result[..., 3] = product[..., 1], excess[..., 1]
    result[..., 4:7] = product[..., 2:resources]
    result[..., 7] = target[..., resources] + source[..., resources]
    result[..., 8:] = (source[..., SUMMED_WIDTH:] - target[..., SUMMED_WIDTH:]) / 3.0
    return result


def _log(value: float, scale: float) -> float:
    """Log of a quantity relative to a typical one, clamped from below to a ten-thousandth of it."""
    return math.log(min(max(value / max(scale, 1e-12), 1e-4), 1e6))
