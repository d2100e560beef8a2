"""Memory and utilisation of a set: analytic forms with few calibrated constants, and what a network adds to utilisation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.features import CONTEXT_BYTES, Floats, is_cpu
from predictor.examples.featurizer import JobOnDevice
from profiling.workload import SoloProfile


@dataclass(frozen=True, slots=True)
class HeadCalibration:
    """Constants of the analytic heads.

    Attributes:
        context_bytes: what a process takes on a GPU before its first tensor.
        host_context_bytes: what a process takes of main memory before its first tensor, where the device is a processor.
        activation_factor: allocated activations over the graph's peak live activations (caching, workspaces).
        sharing_bytes: what each further process adds beyond its own solo memory.
        memory_log_error: 90 % bounds of |log ratio|, graph only, then with solo memory.
    """

    context_bytes: float = float(CONTEXT_BYTES)
    host_context_bytes: float = 350.0 * 2**20
    activation_factor: float = 1.15
    sharing_bytes: float = 22.0 * 2**20
    memory_log_error: tuple[float, float] = (0.5, 0.05)


def member_memory_bytes(job: JobOnDevice, solo: SoloProfile, calibration: HeadCalibration) -> float:
    """Device memory of one process. Never less than parameters, gradients of unfrozen layers and optimiser state."""
    if solo.memory_bytes is not None:
        return solo.memory_bytes
    context = calibration.host_context_bytes if is_cpu(job.device) else calibration.context_bytes
    return context + job.demand.state_bytes + calibration.activation_factor * job.demand.activation_bytes


def set_memory_bytes(members: Floats, calibration: HeadCalibration) -> Floats:
    """[S] from [S, M] (0 where there is no member): processes do not share tensors, so their memory adds up."""
    # Products instead of sums: numpy reduces rows of two or three slowly.
    ones = np.ones(members.shape[-1])
    others = np.maximum((members > 0) @ ones - 1.0, 0.0)
    return members @ ones + others * calibration.sharing_bytes


def set_utilization_ratio(members: Floats, correction: Floats | float = 0.0) -> Floats:
    """[S] from solo utilisation [S, M]: the device idles only when every member does (independent phases).

    Args:
        members: 0 where there is no member.
        correction: [S] what members that keep step, or get in each other's way, add to that; learned where it was measured.
    """
    independent = 1.0 - np.prod(np.clip(1.0 - members, 0.0, 1.0), axis=-1)
    return np.clip(independent + correction, 0.0, 1.0)
