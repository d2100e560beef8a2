"""Horus-like packing: jobs share a GPU while their predicted utilisation adds up to no more than the whole.

After Yeung et al., "Horus: Interference-aware and prediction-based scheduling in deep learning systems", IEEE TPDS
33(1), 2022: the GPU with the least utilisation is chosen, memory must fit; interference itself is not predicted.
"""

from __future__ import annotations

import numpy as np

from predictor.types import Floats
from profiling.workload import ColocationSet, Workload
from scheduling.core.job import Allocation
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import current_workload
from scheduling.placement.gangs import Pool, exclusive_gpus
from scheduling.placement.packing import Company, Tenancy, may_share, shared_gpus


def decide(
    snapshot: SchedulingSnapshot, belief: SetCache, max_members: int = 2, budget: float = 1.0
) -> list[Allocation]:
    """Start waiting jobs: on an empty GPU, else where the sum of utilisations is least and within `budget`."""
    tenancy = Tenancy.of(snapshot, belief, max_members)
    pool, started = Pool(snapshot), []
    company = Company(tenancy, shared_gpus(snapshot, tenancy, max_members))
    kinds = [(snapshot.devices[g], snapshot.sharing[g]) for g in company.gpus.tolist()]
    load = np.array(
        [
            sum(solo_utilization(snapshot, belief, *kind, current_workload(t)) for t in snapshot.tenants[g])
            for g, kind in zip(company.gpus.tolist(), kinds, strict=True)
        ]
    )
    own_use: dict[Workload, Floats] = {}
    refused: set[Workload] = set()
    for job in snapshot.waiting.values():
        if not any(pool.free_of_type) and not company.open.any():
            break
        gpus = exclusive_gpus(pool, belief, job)
        if not gpus and may_share(job) and job.job.workload not in refused:
            own = own_use.get(job.job.workload)
            if own is None:
                use = {k: solo_utilization(snapshot, belief, *k, job.job.workload) for k in set(kinds)}
                own = own_use[job.job.workload] = np.array([use[k] for k in kinds])
            allowed = (load + own <= budget) & company.fits(job)
            if not allowed.any():
                refused.add(job.job.workload)  # GPUs only close while one decision is made
            else:
                gpus = company.take(int(np.argmin(np.where(allowed, load + own, np.inf))))
        if gpus:
            started.append(Allocation(job, gpus))
    return started


def solo_utilization(
    snapshot: SchedulingSnapshot,
    belief: SetCache,
    device: str,
    sharing: str,
    workload: Workload,
) -> float:
    """Predicted utilisation of `workload` alone, 0 to 1."""
    memo = snapshot.derived.setdefault(("utilization", belief), {})
    assert isinstance(memo, dict)
    key = (device, sharing, workload)
    if key not in memo:
        answer = belief.predictor.predict_arrays([ColocationSet(device, (workload,), sharing)])
        memo[key] = float(answer.utilization_ratio[0, 0])
    return float(memo[key])


POLICY = Policy("horus", decide)
