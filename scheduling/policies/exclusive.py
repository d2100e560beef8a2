"""Exclusive best fit: whole GPUs by submission, and any job that fits may overtake."""

from __future__ import annotations

from collections.abc import Iterable

from scheduling.core.job import Allocation, JobState
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gangs import Pool, exclusive_gpus


def decide(snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
    """Start every waiting job that finds whole empty GPUs, on the node that it fills best."""
    return start(snapshot, belief, snapshot.waiting.values())


def start(snapshot: SchedulingSnapshot, belief: SetCache, jobs: Iterable[JobState]) -> list[Allocation]:
    """Give each of `jobs`, in their order, whole empty GPUs as long as there are any."""
    pool, started = Pool(snapshot), []
    for job in jobs:
        if not any(pool.free_of_type):
            break
        gpus = exclusive_gpus(pool, belief, job)
        if gpus:
            started.append(Allocation(job, gpus))
    return started


POLICY = Policy("exclusive", decide)
