"""Constants of the cost model's form, shared by the fitted network and the arrays used in predictions."""

from __future__ import annotations

from typing import Any

OUTPUTS = ("compute_efficiency", "memory_efficiency", "block_share", "latency", "fused_traffic")
"""Of the network, per operator and pass, before their squashing (see `operator_times`)."""
EFFECTS = ("compute_efficiency", "memory_efficiency", "latency")
"""Outputs shifted by the device type."""
HOST_COSTS = ("launch", "fixed", "sample")
"""Of a kernel, a step and a sample; learned apart for each of `HOSTS`, and shifted by a campaign: its framework's version and
machine."""
HOSTS = ("training", "inference", "on_device")
"""What runs a step: a training or inference script that feeds it, or a harness whose data wait on the device."""
HOST_START_S = (6e-6, 5e-4, 1e-7)

TIMINGS = ("step", "operator", "busy")
"""What was timed: a training or inference step; one operator's call, by itself; the time in which the device ran kernels."""

# A kernel's latency on the device is a few microseconds, whatever it does; it varies by operator, by a factor
# of e at most, and by device type. Any further waiting is the host's.
LATENCY_S, LATENCY_RANGE = 3e-6, 1.0
# Exponents of the norms that combine what overlaps: arithmetic and memory within a kernel; device and host
# within a step.
OVERLAP, HOST_OVERLAP = 3.0, 4.0
# Exponent of the norm that combines the memory's own limit with that of a share of the multiprocessors.
SHARE_OVERLAP = 4.0
# Initial values: logits of about 0.73 and 0.82, a third of a tile, 3 microseconds, a third of the traffic.
OFFSETS = (1.0, 1.5, -1.0, 0.0, -0.5)


def overlapped(device_s: Any, host_s: Any) -> Any:
    """Seconds of two overlapping activities: the longer one, and more if they are close.

    The arguments are floats, arrays or tensors.
    """
    return (device_s**HOST_OVERLAP + host_s**HOST_OVERLAP) ** (1 / HOST_OVERLAP)


def slowed_memory(sm_share_ratio: Any, pull: Any) -> Any:
    """Factor on the memory time of a process limited to a share of the multiprocessors; 1 for all of them.

    A multiprocessor can draw more than its share of the bandwidth, so memory slows down only below a share of
    about 1 / `pull`.
    """
    part = 1.0 + (pull * sm_share_ratio) ** -SHARE_OVERLAP
    return (part / (1.0 + pull**-SHARE_OVERLAP)) ** (1.0 / SHARE_OVERLAP)
