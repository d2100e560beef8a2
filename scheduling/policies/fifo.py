"""First in, first out on whole GPUs: nobody overtakes, so a gang at the head holds the queue up."""

from __future__ import annotations

from predictor.types import SetPredictor
from scheduling.policies.api import Policy
from scheduling.policies.gangs import Pool, exclusive_gpus
from scheduling.sets import SetCache
from scheduling.simulator.job import Allocation
from scheduling.simulator.state import SchedulingSnapshot


def decide(snapshot: SchedulingSnapshot, belief: SetPredictor | SetCache) -> list[Allocation]:
    """Start waiting jobs by submission until one does not fit."""
    pool, started = Pool(snapshot), []
    for job in snapshot.waiting.values():
        gpus = exclusive_gpus(pool, belief, job)
        if not gpus:
            break
        started.append(Allocation(job, gpus))
    return started


POLICY = Policy("fifo", decide)
