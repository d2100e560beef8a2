"""Blind packing: an empty GPU if there is one, else beside whoever is there, as long as memory fits."""

from __future__ import annotations

import numpy as np

from predictor.types import SetPredictor
from scheduling.policies.api import Policy
from scheduling.policies.gangs import Pool, exclusive_gpus
from scheduling.policies.packing import Tenancy, may_share, shared_gpus
from scheduling.sets import Ints, SetCache
from scheduling.simulator.job import Allocation, JobState
from scheduling.simulator.state import SchedulingSnapshot


def decide(
    snapshot: SchedulingSnapshot, belief: SetPredictor | SetCache, max_members: int = 2
) -> list[Allocation]:
    """Start waiting jobs: alone where a GPU is empty, else on the first shared GPU with room and memory."""
    tenancy = Tenancy.of(snapshot, belief, max_members)
    pool, started = Pool(snapshot), []
    shared = shared_gpus(snapshot, tenancy, max_members)
    for job in snapshot.waiting.values():
        if not any(pool.free_of_type) and not shared.size:
            break
        gpus = exclusive_gpus(pool, belief, job)
        if not gpus and may_share(job) and shared.size:
            fit = shared[fits_beside(snapshot, tenancy, shared, job)]
            if fit.size:
                gpus = (int(fit[np.argmin(snapshot.tenant_count[fit])]),)
                shared = shared[shared != gpus[0]]
        if gpus:
            started.append(Allocation(job, gpus))
    return started


def fits_beside(
    snapshot: SchedulingSnapshot, tenancy: Tenancy, gpus: Ints, job: JobState
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """[N] whether the predicted memory of each GPU's tenants and `job` together fits."""
    cache = tenancy.cache
    own = np.full((len(gpus), 1), cache.workload_id(job.job.workload))
    members = np.column_stack([tenancy.members[gpus], own])
    present = np.column_stack([tenancy.present[gpus], np.ones(len(gpus), bool)])
    order = np.argsort(np.where(present, members, np.iinfo(np.int64).max), axis=1, kind="stable")
    at = np.arange(len(gpus))[:, None]
    with cache.lock:
        rows = cache.rows(tenancy.devices[gpus], members[at, order], present[at, order])
        return cache.fits[rows]


POLICY = Policy("blind", decide)
