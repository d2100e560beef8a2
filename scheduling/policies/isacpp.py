"""ISACPP: every GPU's future followed stage by stage with the job on it; the waiting jobs decided together.

Liu et al., IEEE TPDS 36(8), 2025. Beyond the paper: the default objective is the increase of the sum of completion
times, waiting is an answer, and the first jobs of the queue are assigned jointly instead of one by one.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from scipy.optimize import linear_sum_assignment

from predictor.types import Floats, SetPredictor
from scheduling.placement import Candidates, PlacementConfig, best_wait, rank
from scheduling.policies.api import Policy
from scheduling.policies.gangs import Pool, exclusive_gpus, solo_step_s
from scheduling.policies.packing import Tenancy, may_share, shared_gpus
from scheduling.sets import Ints, SetCache
from scheduling.simulator.job import Allocation, JobState
from scheduling.simulator.state import SchedulingSnapshot

_NEVER = 1e18


def decide(
    snapshot: SchedulingSnapshot,
    belief: SetPredictor | SetCache,
    config: PlacementConfig | None = None,
    batch: int = 32,
) -> list[Allocation]:
    """Assign up to `batch` waiting jobs at a time to GPUs or to waiting, by least total cost, until nothing changes."""
    config = config or PlacementConfig(max_members=2)
    pool, started = Pool(snapshot), []
    tenancy = Tenancy.of(snapshot, belief, config.max_members)
    shared = shared_gpus(snapshot, tenancy, config.max_members)
    queue = list(snapshot.waiting.values())
    for job in [j for j in queue if not may_share(j)][:batch]:
        gpus = exclusive_gpus(pool, belief, job)
        if gpus:
            started.append(Allocation(job, gpus))
    jobs = [j for j in queue if may_share(j)][: 8 * batch]
    while jobs:
        head, jobs = jobs[:batch], jobs[batch:]
        placed = _assign(snapshot, belief, tenancy, pool, shared, head, config)
        started.extend(placed)
        used = np.array([a.gpus[0] for a in placed], np.int64)
        shared = shared[~np.isin(shared, used)]
        if not placed or (not shared.size and not any(pool.free_of_type)):
            break
    return started


def _assign(
    snapshot: SchedulingSnapshot,
    belief: SetPredictor | SetCache,
    tenancy: Tenancy,
    pool: Pool,
    shared: Ints,
    jobs: list[JobState],
    config: PlacementConfig,
) -> list[Allocation]:
    cache, width = tenancy.cache, tenancy.members.shape[1]
    steps = np.array([solo_step_s(snapshot, belief, j.job.workload) for j in jobs])
    left = np.array([snapshot.left(j) for j in jobs])
    # Equal empty GPUs are one column per type, repeated as often as there are jobs to take them.
    kinds = [k for k in range(len(snapshot.types)) for _ in range(min(pool.free_of_type[k], len(jobs)))]
    alone = (
        left[:, None] * steps
        if config.objective != "interference"
        else np.where(np.isfinite(steps), 0.0, np.inf)
    )
    cost = alone[:, kinds] if kinds else np.zeros((len(jobs), 0))
    ids = np.array([cache.workload_id(j.job.workload) for j in jobs])
    wait: Floats = np.full(len(jobs), _NEVER / 4)
    if shared.size:
        state = tenancy.candidates(snapshot, shared)
        whole = Candidates(*(np.tile(a, (len(jobs), *([1] * (a.ndim - 1)))) for a in _fields(state)))
        ranking = rank(cache, whole, np.repeat(ids, shared.size), np.repeat(left, shared.size), config)
        cost = np.column_stack([cost, ranking.score.reshape(len(jobs), shared.size)])
    if config.wait and config.objective != "interference":
        busy = np.flatnonzero(
            (snapshot.tenant_count > 0) & tenancy.shareable & (snapshot.tenant_count <= width)
        )
        if busy.size:
            state = tenancy.candidates(snapshot, busy)
            found = best_wait(cache, state, ids, left, config, cost.min(axis=1, initial=_NEVER))
            wait = np.where(found.candidate >= 0, found.score, wait)
    cost = np.column_stack(
        [
            np.where(np.isfinite(cost), cost, _NEVER),
            np.where(np.eye(len(jobs), dtype=bool), wait[:, None], _NEVER),
        ]
    )
    rows, columns = linear_sum_assignment(cost)
    decided: list[Allocation] = []
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        if cost[row, column] >= _NEVER / 8 or column >= len(kinds) + shared.size:
            continue
        if column < len(kinds):
            gpus = pool.take(1, kinds[column])
            if gpus:
                decided.append(Allocation(jobs[row], gpus))
        else:
            decided.append(Allocation(jobs[row], (int(shared[column - len(kinds)]),)))
    return decided


def _fields(state: Candidates) -> tuple[np.ndarray, ...]:
    return state.devices, state.members, state.iterations, state.present, state.budgets


def isacpp(config: PlacementConfig, name: str = "isacpp", batch: int = 32) -> Policy:
    """The policy with settings of its own."""
    return Policy(name, partial(decide, config=config, batch=batch))


POLICY = isacpp(PlacementConfig(max_members=2))
INTERFERENCE = isacpp(PlacementConfig(objective="interference", max_members=2), "isacpp-interference")
MAKESPAN = isacpp(PlacementConfig(objective="makespan", max_members=2), "isacpp-makespan")
