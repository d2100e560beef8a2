"""ISACPP: every GPU's future followed stage by stage with the job on it; the waiting jobs decided together.

Liu et al., IEEE TPDS 36(8), 2025. Beyond the paper: the default objective is the increase of the sum of completion
times, waiting is an answer, and the first jobs of the queue are assigned jointly instead of one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.optimize import linear_sum_assignment

from predictor.types import Floats
from scheduling.core.job import Allocation, JobState
from scheduling.core.policy import Policy
from scheduling.core.set_cache import Ints, SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gangs import Pool, exclusive_gpus, solo_step_s
from scheduling.placement.packing import Tenancy, may_share, shared_gpus
from scheduling.placement.queueing import QueueConfig, first_empty, first_overdue, in_order
from scheduling.placement.ranking import Candidates, PlacementConfig, best_wait, rank
from scheduling.placement.stages import Stages, stages

_NEVER = 1e18
_NONE: Ints = np.zeros(0, np.int64)


def decide(
    snapshot: SchedulingSnapshot,
    belief: SetCache,
    config: PlacementConfig | None = None,
    queue: QueueConfig | None = None,
) -> list[Allocation]:
    """Assign a batch of waiting jobs at a time to GPUs or to waiting, by least total cost, until nothing changes."""
    config, queue = config or PlacementConfig(max_members=2), queue or QueueConfig()
    pool, started = Pool(snapshot), list[Allocation]()
    waiting = in_order(snapshot, belief, queue)
    overdue, kept = first_overdue(snapshot, belief, queue.aging_s), _NONE
    if overdue is not None:
        waiting.remove(overdue)
        started, kept = _before_all(snapshot, belief, pool, overdue, config)
    for job in [j for j in waiting if not may_share(j)][: queue.batch]:
        gpus = exclusive_gpus(pool, belief, job)
        if gpus:
            started.append(Allocation(job, gpus))
    jobs = [j for j in waiting if may_share(j)][: 8 * queue.batch]
    plenty = _plenty(snapshot, belief, pool, jobs)
    if plenty is not None and config.objective != "makespan":
        return started + [Allocation(j, pool.take(1, kind)) for j, kind in zip(jobs, plenty, strict=True)]
    tenancy = Tenancy.of(snapshot, belief, config.max_members)
    shared = np.setdiff1d(shared_gpus(snapshot, tenancy, config.max_members), kept, assume_unique=True)
    while jobs:
        head, jobs = jobs[: queue.batch], jobs[queue.batch :]
        placed = _assign(snapshot, belief, tenancy, pool, shared, head, config)
        started.extend(placed)
        used = np.array([a.gpus[0] for a in placed], np.int64)
        shared = shared[~np.isin(shared, used)]
        if not placed or (not shared.size and not any(pool.free_of_type)):
            break
    return started


def _before_all(
    snapshot: SchedulingSnapshot,
    belief: SetCache,
    pool: Pool,
    job: JobState,
    config: PlacementConfig,
) -> tuple[list[Allocation], Ints]:
    """The overdue job where it costs least now, and the GPUs that nobody else may join in this decision.

    It does not wait for a better place, or it might for ever; where nothing can take it, a place falls empty for it.
    """
    tenancy = Tenancy.of(snapshot, belief, config.max_members)
    if may_share(job):
        shared = shared_gpus(snapshot, tenancy, config.max_members)
        placed = _assign(snapshot, belief, tenancy, pool, shared, [job], replace(config, wait=False))
        if placed:
            return placed, np.array(placed[0].gpus, np.int64)
    gpus = exclusive_gpus(pool, belief, job)
    if gpus:
        return [Allocation(job, gpus)], _NONE
    kept = first_empty(snapshot, belief, tenancy, job)
    pool.keep(kept.tolist())
    return [], kept


def _plenty(
    snapshot: SchedulingSnapshot, belief: SetCache, pool: Pool, jobs: list[JobState]
) -> list[int] | None:
    """The fastest type of each job where every job finds an empty GPU of it: nothing can be better than that."""
    if len(jobs) > sum(pool.free_of_type):
        return None
    kinds = [int(np.argmin(solo_step_s(snapshot, belief, j.job.workload))) for j in jobs]
    return kinds if all(pool.free_of_type[k] >= kinds.count(k) for k in set(kinds)) else None


def _assign(
    snapshot: SchedulingSnapshot,
    belief: SetCache,
    tenancy: Tenancy,
    pool: Pool,
    shared: Ints,
    jobs: list[JobState],
    config: PlacementConfig,
) -> list[Allocation]:
    cache = tenancy.cache
    steps = np.array([solo_step_s(snapshot, belief, j.job.workload) for j in jobs])
    left = np.array([snapshot.left(j) for j in jobs])
    ids = np.array([cache.workload_id(j.job.workload) for j in jobs])
    # Equal empty GPUs are one column per type, repeated as often as there are jobs to take them.
    kinds = [k for k in range(len(snapshot.types)) for _ in range(min(pool.free_of_type[k], len(jobs)))]
    state = tenancy.candidates(snapshot, shared)
    if config.objective == "makespan":
        cost, wait = _by_work(cache, state, ids, left, steps, kinds, config)
    else:
        alone = (
            left[:, None] * steps if config.objective == "jct" else np.where(np.isfinite(steps), 0.0, np.inf)
        )
        cost = np.column_stack([alone[:, kinds], _every_pair(cache, state, ids, left, config).score])
        wait = np.full(len(jobs), _NEVER / 4)
        # A departure serves one job: in a long queue waiting for it is not worth what it seems.
        if config.wait and config.objective == "jct" and len(snapshot.waiting) <= max(1, len(snapshot) // 2):
            busy = np.flatnonzero((snapshot.tenant_count > 0) & tenancy.shareable)
            seen = tenancy.candidates(snapshot, busy)
            found = best_wait(cache, seen, ids, left, config, cost.min(axis=1, initial=_NEVER))
            wait = np.where(found.candidate >= 0, found.score, wait)
    everything = np.full((len(jobs), cost.shape[1] + len(jobs)), _NEVER)
    everything[:, : cost.shape[1]] = np.where(np.isfinite(cost), cost, _NEVER)
    everything[np.arange(len(jobs)), cost.shape[1] + np.arange(len(jobs))] = wait
    cost = everything
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


@dataclass(frozen=True, slots=True)
class _Pairs:
    """[J, N] score of every job on every candidate, and slowdown of the job and of the tenants there."""

    score: Floats
    own: Floats
    tenants: Floats
    before: Floats


def _every_pair(
    cache: SetCache, state: Candidates, ids: Ints, left: Floats, config: PlacementConfig
) -> _Pairs:
    """All jobs on all candidates in one call. `tenants` and `before`: [J, N, M] slowdown with and without the job."""
    count, jobs = len(state.devices), len(ids)
    if not count:
        none = np.zeros((jobs, 0))
        return _Pairs(none, none, none[:, :, None], none[:, :, None])
    nobody = np.zeros_like(state.present)
    before = stages(cache, state.devices, state.members, state.iterations, state.present, nobody)
    tile = np.tile(np.arange(count), jobs)
    whole = state.take(tile)
    known = Stages(
        before.finish_s[tile],
        before.interference[tile],
        before.slowdown[tile],
        before.fits[tile],
        before.memory_upper_bytes[tile],
    )
    found = rank(cache, whole, np.repeat(ids, count), np.repeat(left, count), config, known)
    shape = (jobs, count)
    absent = ~whole.present
    return _Pairs(
        found.score.reshape(shape),
        found.slowdown[:, -1].reshape(shape),
        np.where(absent, np.inf, found.slowdown[:, :-1]).reshape(*shape, -1),
        np.where(absent, np.inf, known.slowdown).reshape(*shape, -1),
    )


def _by_work(
    cache: SetCache,
    state: Candidates,
    ids: Ints,
    left: Floats,
    steps: Floats,
    kinds: list[int],
    config: PlacementConfig,
) -> tuple[Floats, Floats]:
    """Cost of each place for the makespan of the queue: work gained per second, long jobs first; and of waiting, 0.

    Work counts in seconds of the job alone on its fastest type, so that an empty GPU of that type gains 1 per second,
    and a shared one what all its members do together less what the tenants do now.
    """
    fastest = steps.min(axis=1)
    length = left * fastest
    weight = 0.25 * length / max(float(length.max()), 1e-9)
    pairs = _every_pair(cache, state, ids, left, config)
    types, type_of = np.unique(state.devices, return_inverse=True)
    names, name_of = np.unique(ids, return_inverse=True)
    once = np.array([[cache.solo(int(d), int(w)) for d in types] for w in names], int).reshape(len(names), -1)
    alone = once[name_of][:, type_of]
    pace = fastest[:, None] / cache.step_time_s[alone, 0] if alone.size else np.zeros(alone.shape)
    gain = pace / pairs.own + (1.0 / pairs.tenants - 1.0 / pairs.before).sum(axis=2)
    gain = np.where(np.isfinite(pairs.score), gain, -np.inf)
    empty = (fastest[:, None] / steps)[:, kinds]
    both = np.column_stack([empty, gain])
    return np.where(both > 0.02, -both - weight[:, None], np.inf), np.zeros(len(ids))


def isacpp(config: PlacementConfig, name: str = "isacpp", queue: QueueConfig | None = None) -> Policy:
    """The policy with settings of its own."""
    return Policy(name, partial(decide, config=config, queue=queue))


POLICY = isacpp(PlacementConfig(max_members=2))
INTERFERENCE = isacpp(PlacementConfig(objective="interference", max_members=2), "isacpp-interference")
MAKESPAN = isacpp(
    PlacementConfig(objective="makespan", max_members=2), "isacpp-makespan", QueueConfig("fifo")
)
