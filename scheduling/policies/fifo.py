"""First in, first out on whole GPUs: no job overtakes, so a gang at the head blocks the queue."""

from __future__ import annotations

from scheduling.core.job import Allocation
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gangs import Pool, exclusive_gpus


def decide(snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
    """Start waiting jobs by submission until one does not fit."""
    pool, started = Pool(snapshot), []
    for job in snapshot.waiting.values():
        gpus = exclusive_gpus(pool, belief, job)
        if not gpus:
            break
        started.append(Allocation(job, gpus))
    return started


POLICY = Policy("fifo", decide)
