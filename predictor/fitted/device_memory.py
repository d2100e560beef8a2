"""Memory and utilisation of a set.

Both have analytic forms with a few calibrated constants; utilisation also has a learned correction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.cost.job import HALF, trained_ratio
from models.features import Floats
from predictor.examples.examples import Examples
from predictor.examples.featurizer import Featurizer, JobOnDevice
from profiling.capture.optimizers import TEMPORARIES
from profiling.graph import ComputationGraph
from profiling.workload import SoloProfile


@dataclass(frozen=True, slots=True)
class HeadCalibration:
    """Constants of the analytic heads.

    Attributes:
        context_bytes: GPU memory that a process with a framework's libraries takes before its first tensor.
        context_bytes_per_thread: local memory for each thread that the device can hold at a time.
        old_context_bytes: the whole context on GPUs before Pascal, whose libraries hold fewer kernels.
        host_context_bytes: main memory that a process takes before its first tensor, if the device is a CPU.
        activation_factor, half_activation_factor: ratio of allocated activations to the graph's peak live
            activations, in full and in half precision (AMP included).
        workspace_factor, workspace_bytes: ratio of an algorithm's workspace to the traffic of the largest
            operator, and the most that a library takes.
        half_workspace_factor, half_workspace_bytes: the same in half precision, whose algorithms need less.
        sharing_bytes: memory that each further process adds beyond its own solo memory.
        memory_log_error: 90 % bounds of |log ratio| for memory that is not exactly known state: from the
            graph only, then with solo memory.

    Context, factors in full precision and workspace were fitted to SchedTune's peaks of five cards (MIT),
    those in half precision to the batch sizes at which timm's networks ran, and failed, in 24 GB:
    `benchmarks/memory_constants.py`.
    """

    context_bytes: float = 1.25e9
    context_bytes_per_thread: float = 1.7e3
    old_context_bytes: float = 0.5e9
    host_context_bytes: float = 350.0 * 2**20
    activation_factor: float = 1.06
    half_activation_factor: float = 0.97
    workspace_factor: float = 1.2
    workspace_bytes: float = 1e9
    half_workspace_factor: float = 0.3
    half_workspace_bytes: float = 1.5e9
    sharing_bytes: float = 22.0 * 2**20
    memory_log_error: tuple[float, float] = (0.1, 0.05)


def member_memory_bytes(job: JobOnDevice, solo: SoloProfile, calibration: HeadCalibration) -> float:
    """Device memory of one process.

    It is at least parameters, gradients of unfrozen layers and optimiser state.
    """
    if solo.memory_bytes is not None:
        return solo.memory_bytes
    # Activations are free again when the optimiser steps.
    beyond_state = max(
        activation_factor(job, calibration) * job.demand.activation_bytes, optimizer_temporary_bytes(job)
    )
    return process_bytes(job, calibration) + job.demand.state_bytes + beyond_state


def optimizer_temporary_bytes(job: JobOnDevice) -> float:
    """What an optimiser's step allocates besides its state.

    On a GPU, torch's optimisers update all parameters together (`foreach`, the default since torch 2.0), with
    intermediate results of the parameters' size. On a CPU they update one tensor at a time, without any.
    """
    if job.device.is_cpu or job.workload.mode != "training":
        return 0.0
    trained_bytes = job.graph.gradient_bytes * trained_ratio(job.graph, job.workload.frozen_prefix)
    return TEMPORARIES.get(str(job.graph.options.get("optimizer")), 0) * trained_bytes


def activation_factor(job: JobOnDevice, calibration: HeadCalibration) -> float:
    """Ratio of allocated to live activations, by precision; 1 on a CPU."""
    if job.device.is_cpu:
        return 1.0
    half = job.workload.precision in HALF
    return calibration.half_activation_factor if half else calibration.activation_factor


def process_bytes(job: JobOnDevice, calibration: HeadCalibration) -> float:
    """A process's memory besides its tensors: context, and the largest workspace."""
    if job.device.is_cpu:
        return calibration.host_context_bytes
    if job.device.vendor == "nvidia" and float(job.device.compute_capability or 9.0) < 6.0:
        context = calibration.old_context_bytes
    else:
        threads = job.device.sm_count * job.device.max_threads_per_sm
        context = calibration.context_bytes + calibration.context_bytes_per_thread * threads
    return context + workspace_bytes(job.graph, job.workload.precision, calibration)


def workspace_bytes(graph: ComputationGraph, precision: str, calibration: HeadCalibration) -> float:
    """The largest library workspace for an operator of the graph."""
    columns = graph.columns
    largest = float((columns["bytes_read"] + columns["bytes_written"]).max(initial=0.0))
    if precision in HALF:
        return min(calibration.half_workspace_factor * largest, calibration.half_workspace_bytes)
    return min(calibration.workspace_factor * largest, calibration.workspace_bytes)


def set_memory_bytes(members: Floats, calibration: HeadCalibration) -> Floats:
    """[S] from [S, M] (0 where there is no member): processes do not share tensors, so their memory adds up."""
    # Products instead of sums, because numpy reduces rows of two or three slowly.
    ones = np.ones(members.shape[-1])
    others = np.maximum((members > 0) @ ones - 1.0, 0.0)
    total = members @ ones + others * calibration.sharing_bytes
    if calibration.sharing_bytes >= 0.0:
        return total
    # Learned from sets that save memory; a set still takes as much as its largest member.
    return np.maximum(total, members.max(axis=-1, initial=0.0))


def examples_memory_bytes(examples: Examples, featurizer: Featurizer, calibration: HeadCalibration) -> Floats:
    """[S] predicted memory of measured sets, from their members' solo measurements where there are any."""
    members = [
        member_memory_bytes(featurizer.job(workload, device), workload.solo, calibration)
        for workload, device in zip(examples.workloads, examples.devices, strict=True)
    ]
    return set_memory_bytes(examples.padded(np.array(members)), calibration)


def set_utilization_ratio(members: Floats, correction: Floats | float = 0.0) -> Floats:
    """[S] from solo utilisation [S, M]: the device idles only when every member does (independent phases).

    Args:
        members: 0 where there is no member.
        correction: [S] learned correction for members whose phases are synchronised or in conflict.
    """
    independent = 1.0 - np.prod(np.clip(1.0 - members, 0.0, 1.0), axis=-1)
    return np.clip(independent + correction, 0.0, 1.0)
