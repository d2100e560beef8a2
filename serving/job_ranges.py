"""Allowed ranges of the numbers in a submitted job, and checks of SPECs against them."""

from __future__ import annotations

from functools import lru_cache

from profiling.errors import InputError
from profiling.workload import STEP_TIMES_S, Workload

#: Physically possible minimum and maximum of every number of a job.
RANGES: dict[str, tuple[float, float]] = {
    "batch_size": (1, 10**6),
    "sequence_length": (1, 10**7),
    "image_size": (1, 10**5),
    "frozen_prefix": (0, 10**6),
    "gradient_accumulation": (1, 10**6),
    "sm_share_ratio": (1e-3, 1.0),
    "step_time_s": STEP_TIMES_S,
    "memory_bytes": (1.0, 1e15),
    "utilization_ratio": (0.0, 1.0),
    "memory_bandwidth_ratio": (0.0, 1.0),
    "iterations": (1e-3, 1e12),
    "iterations_left": (0.0, 1e12),
    "max_slowdown": (1.0, 1e6),
    "bandwidth_bytes_per_s": (1.0, 1e15),
}

#: Maximum length of a SPEC.
SPEC_LENGTH = 500


@lru_cache(maxsize=65_536)
def spec_of(text: str) -> Workload:
    """The workload of a stored SPEC, without checking today's ranges. Raises `InputError`."""
    return Workload.parse(text)


def check_ranges(workload: Workload) -> Workload:
    """The workload, if all its numbers are in range. Raises `InputError`."""
    for name, value in workload.to_mapping().items():
        if name in RANGES:
            check_range(name, value)
    return workload


def check_range(name: str, value: float) -> float:
    """The number, if in range. Raises `InputError`."""
    least, most = RANGES[name]
    if not least <= value <= most:
        raise InputError(f"{name} is out of range", expected=f"{least:g} to {most:g}", got=value)
    return value


@lru_cache(maxsize=16_384)
def parse_job(text: str) -> Workload:
    """The workload of a SPEC whose numbers are in range. Raises `InputError`."""
    return check_ranges(Workload.parse(text))
