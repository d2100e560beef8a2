"""Blind packing: an empty GPU if there is one, else beside whoever is there, as long as memory fits."""

from __future__ import annotations

import numpy as np

from scheduling.core.job import Allocation
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gangs import Pool, exclusive_gpus
from scheduling.placement.packing import Company, Tenancy, may_share, shared_gpus


def decide(snapshot: SchedulingSnapshot, belief: SetCache, max_members: int = 2) -> list[Allocation]:
    """Start waiting jobs: alone where a GPU is empty, else on the first shared GPU with room and memory."""
    tenancy = Tenancy.of(snapshot, belief, max_members)
    pool, started = Pool(snapshot), []
    company = Company(tenancy, shared_gpus(snapshot, tenancy, max_members))
    for job in snapshot.waiting.values():
        if not any(pool.free_of_type) and not company.open.any():
            break
        gpus = exclusive_gpus(pool, belief, job)
        if not gpus and may_share(job):
            fit = np.flatnonzero(company.fits(job))
            if fit.size:
                gpus = company.take(int(fit[np.argmin(snapshot.tenant_count[company.gpus[fit]])]))
        if gpus:
            started.append(Allocation(job, gpus))
    return started


POLICY = Policy("blind", decide)
