"""Lucid-like packing: jobs are labelled by what they take alone, and only light company is allowed.

After Hu et al., "Lucid: A Non-intrusive, Scalable and Interpretable Scheduler for Deep Learning Training Jobs",
ASPLOS 2023: tiny (0), medium (1) and jumbo (2) jobs by solo utilisation; two share a GPU when their labels sum to no
more than 2; shorter jobs first. The labels' thresholds are ours.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from profiling.workload import Workload
from scheduling.core.job import Allocation
from scheduling.core.policy import Policy
from scheduling.core.set_cache import Ints, SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import current_workload
from scheduling.placement.gangs import Pool, exclusive_gpus, remaining_s
from scheduling.placement.packing import Company, Tenancy, may_share, shared_gpus
from scheduling.policies.horus import solo_utilization

THRESHOLDS = (0.4, 0.8)
BUDGET = 2


def decide(snapshot: SchedulingSnapshot, belief: SetCache, max_members: int = 2) -> list[Allocation]:
    """Start waiting jobs, the shortest first: on an empty GPU, else where the labels add up to the budget at most."""
    tenancy = Tenancy.of(snapshot, belief, max_members)
    pool, started = Pool(snapshot), []
    company = Company(tenancy, shared_gpus(snapshot, tenancy, max_members))

    def label(gpu: int, workload: Workload) -> int:
        use = solo_utilization(snapshot, belief, snapshot.devices[gpu], snapshot.sharing[gpu], workload)
        return bisect_right(THRESHOLDS, use)

    gpu_numbers = company.gpus.tolist()
    taken = np.array(
        [sum(label(g, current_workload(t)) for t in snapshot.tenants[g]) for g in gpu_numbers], int
    )
    labels: dict[Workload, Ints] = {}
    refused: set[Workload] = set()
    for job in sorted(snapshot.waiting.values(), key=lambda j: (remaining_s(snapshot, belief, j), j.number)):
        if not any(pool.free_of_type) and not company.open.any():
            break
        gpus = exclusive_gpus(pool, belief, job)
        if not gpus and may_share(job) and job.job.workload not in refused:
            workload = job.job.workload
            if workload not in labels:
                labels[workload] = np.array([label(g, workload) for g in gpu_numbers], int)
            sums = taken + labels[workload]
            allowed = (sums <= BUDGET) & company.fits(job)
            if not allowed.any():
                refused.add(job.job.workload)  # GPUs only close while one decision is made
            else:
                gpus = company.take(int(np.argmin(np.where(allowed, sums, 1 << 30))))
        if gpus:
            started.append(Allocation(job, gpus))
    return started


POLICY = Policy("lucid", decide)
