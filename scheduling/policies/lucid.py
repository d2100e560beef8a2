"""Lucid-like packing: jobs are labelled by what they take alone, and only light company is allowed.

After Hu et al., "Lucid: A Non-intrusive, Scalable and Interpretable Scheduler for Deep Learning Training Jobs",
ASPLOS 2023: tiny (0), medium (1) and jumbo (2) jobs by solo utilisation; two share a GPU when their labels sum to no
more than 2; shorter jobs first. The labels' thresholds are ours.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from predictor.types import SetPredictor
from scheduling.policies.api import Policy
from scheduling.policies.blind import fits_beside
from scheduling.policies.gangs import Pool, exclusive_gpus, remaining_s
from scheduling.policies.horus import solo_utilization
from scheduling.policies.packing import Tenancy, may_share, shared_gpus
from scheduling.sets import SetCache
from scheduling.simulator.job import Allocation
from scheduling.simulator.state import SchedulingSnapshot
from scheduling.simulator.truth import current_workload

THRESHOLDS = (0.4, 0.8)
BUDGET = 2


def decide(
    snapshot: SchedulingSnapshot, belief: SetPredictor | SetCache, max_members: int = 2
) -> list[Allocation]:
    """Start waiting jobs, the shortest first: on an empty GPU, else where the labels add up to the budget at most."""
    tenancy = Tenancy.of(snapshot, belief, max_members)
    pool, started = Pool(snapshot), []
    shared = shared_gpus(snapshot, tenancy, max_members)

    def label(gpu: int, workload: object) -> int:
        use = solo_utilization(snapshot, belief, snapshot.devices[gpu], snapshot.sharing[gpu], workload)  # type: ignore[arg-type]
        return bisect_right(THRESHOLDS, use)

    taken = np.array(
        [sum(label(g, current_workload(t)) for t in snapshot.tenants[g]) for g in shared.tolist()], int
    )
    for job in sorted(snapshot.waiting.values(), key=lambda j: (remaining_s(snapshot, belief, j), j.number)):
        if not any(pool.free_of_type) and not shared.size:
            break
        gpus = exclusive_gpus(pool, belief, job)
        if not gpus and may_share(job) and shared.size:
            sums = taken + np.array([label(g, job.job.workload) for g in shared.tolist()], int)
            allowed = (sums <= BUDGET) & fits_beside(snapshot, tenancy, shared, job)
            if allowed.any():
                best = int(np.argmin(np.where(allowed, sums, 1 << 30)))
                gpus = (int(shared[best]),)
                shared, taken = np.delete(shared, best), np.delete(taken, best)
        if gpus:
            started.append(Allocation(job, gpus))
    return started


POLICY = Policy("lucid", decide)
