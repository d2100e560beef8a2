"""ISACPP: simulates every GPU stage by stage with the job on it, and decides the waiting jobs together.

Liu et al., IEEE TPDS 36(8), 2025. Beyond the paper: the default objective is the increase of the sum of completion
times with the whole queue in view (`scheduling.placement.pricing`), waiting is an answer, and a job that shares a GPU
moves to one that becomes empty if that outweighs its restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np

from scheduling.core.job import Allocation, JobState
from scheduling.core.policy import Policy
from scheduling.core.set_cache import Ints, SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gangs import Pool, exclusive_gpus, remaining_s, solo_step_s
from scheduling.placement.guard import guarded
from scheduling.placement.making_room import by_moving
from scheduling.placement.migrating import migrate
from scheduling.placement.packing import Tenancy, may_share, shared_gpus
from scheduling.placement.pairing import offers
from scheduling.placement.preempting import preempt
from scheduling.placement.pricing import matched, start_at_price
from scheduling.placement.queueing import QueueConfig, first_empty, first_overdue, in_order, work_s
from scheduling.placement.ranking import PlacementConfig

_NONE: Ints = np.zeros(0, np.int64)
# Jobs of the queue considered per decision, because gangs and single GPUs are decided separately.
_LOOK = 8
_TIE = 1e-9  # weight of what decides between equal sums
_ANY = 1e-9  # a critical ratio that the longest waiting job has


def decide(
    snapshot: SchedulingSnapshot,
    belief: SetCache,
    config: PlacementConfig = PlacementConfig(max_members=2),
    queue: QueueConfig = QueueConfig(),
    restart_s: float | None = 30.0,
) -> list[Allocation]:
    """Place the first jobs of the queue where they cost least, or let them wait.

    With the objective `jct`, a decision projected to end later than shortest job first is replaced
    (`scheduling.placement.guard`) by longest job first or by that rule.

    Args:
        restart_s: cost of moving a job; None: jobs are not moved.
    """
    overdue = first_overdue(snapshot, belief, queue.aging_s)
    propose = partial(_propose, snapshot, belief, config, restart_s=restart_s, overdue=overdue)
    alone = config.objective != "jct" or config.max_members != 2 or restart_s is None
    if alone or overdue is not None or queue.tolerance == np.inf:
        return propose(queue)
    proposals = [partial(propose, q) for q in (queue, replace(queue, critical_ratio=_ANY))]
    return guarded(snapshot, belief, proposals, queue.tolerance, config.max_slowdown, restart_s or 0.0)


def _propose(
    snapshot: SchedulingSnapshot,
    belief: SetCache,
    config: PlacementConfig,
    queue: QueueConfig,
    restart_s: float | None,
    overdue: JobState | None,
) -> list[Allocation]:
    """The cheapest decision by the price of GPU time, with `overdue` first."""
    pool, started, kept = Pool(snapshot), list[Allocation](), _NONE
    if overdue is not None:
        started, kept = _before_all(snapshot, belief, pool, overdue, config)
    waiting = (j for j in in_order(snapshot, belief, queue.order) if j is not overdue)
    head = list(islice(waiting, _LOOK * queue.batch))
    too_large = np.inf  # GPUs of the smallest gang for which no jobs could move
    for job in [j for j in head if not may_share(j)][: queue.batch]:
        gpus = exclusive_gpus(pool, belief, job)
        if (
            not gpus
            and restart_s is not None
            and job.job.gpus <= sum(pool.free_of_type)
            and job.job.gpus < too_large
        ):
            pool, gpus, moves = _with_moves(snapshot, belief, pool, job, restart_s, started)
            too_large = too_large if gpus else job.job.gpus
            started += moves
            kept = np.union1d(kept, [gpu for move in moves for gpu in move.job.gpus]).astype(np.int64)
        if gpus:
            started.append(Allocation(job, gpus))
    jobs = [j for j in head if may_share(j)]
    if config.objective != "makespan":
        plenty = _plenty(snapshot, belief, pool, jobs)
        if plenty is not None:
            started += [Allocation(j, pool.take(1, kind)) for j, kind in zip(jobs, plenty, strict=True)]
            jobs = []
    tenancy = Tenancy.of(snapshot, belief, config.max_members)
    if jobs:
        longest_s = np.inf
        critical: JobState | None = None
        # A queue longer than the part considered is far from its end.
        if config.objective == "jct" and len(head) + (overdue is not None) >= len(snapshot.waiting):
            longest_s = queue.critical_ratio * work_s(snapshot, tenancy)
            critical = _longest(snapshot, belief, jobs, longest_s)
        if critical is not None:
            jobs = [critical, *(j for j in jobs if j is not critical)]
        shared = np.setdiff1d(shared_gpus(snapshot, tenancy, config.max_members), kept, assume_unique=True)
        if shared.size or any(pool.free_of_type):
            placed, sharing = _start(
                snapshot, tenancy, pool, shared, jobs[: queue.batch], config, started, restart_s
            )
            if restart_s is not None and config.objective == "jct":
                on_empty = {a.job.number for a in placed} - set(sharing)
                rest = [j for j in jobs[: queue.batch] if j.number not in on_empty and j is not critical]
                used = {gpu for a in [*started, *placed] for gpu in (*a.gpus, *a.job.gpus)}
                swaps = preempt(snapshot, tenancy, rest, config, restart_s, used, sharing, longest_s)
                swapped = {a.job.number for a in swaps}
                placed = [a for a in placed if a.job.number not in swapped] + swaps
            started += placed
    # No other job wants the remaining empty GPUs, and none has moved for a gang.
    if (
        restart_s is not None
        and len(started) == len(snapshot.waiting)
        and not any(a.job.gpus for a in started)
    ):
        joined = {gpu for allocation in started for gpu in allocation.gpus}
        moved = migrate(snapshot, tenancy, pool, restart_s, joined, makespan=config.objective == "makespan")
        started += moved
    return started


def _with_moves(
    snapshot: SchedulingSnapshot,
    belief: SetCache,
    pool: Pool,
    job: JobState,
    restart_s: float,
    begun: Sequence[Allocation],
) -> tuple[Pool, tuple[int, ...], list[Allocation]]:
    """The pool afterwards, GPUs for a gang, and moves of running jobs that make room, if these cost less than it needs."""
    moved = {a.job.number for a in begun}
    alone = [
        j
        for j in snapshot.running.values()
        if snapshot.movable(j)
        and j.number not in moved
        and all(snapshot.tenant_count[gpu] == 1 for gpu in j.gpus)
    ]
    after, gpus, places = by_moving(pool, belief, job, job.job.gpus, alone)
    cost_s = restart_s * sum(map(len, places.values()))
    if not gpus or cost_s >= remaining_s(snapshot, belief, job) * job.job.gpus:
        return pool, (), []
    return after, gpus, [Allocation(snapshot.running[number], place) for number, place in places.items()]


def _longest(
    snapshot: SchedulingSnapshot, belief: SetCache, jobs: list[JobState], above_s: float
) -> JobState | None:
    """The longest of `jobs` that needs more than `above_s` alone, except those that fit nowhere."""
    needed = ((remaining_s(snapshot, belief, j), j.number, j) for j in jobs)
    longest = max(((s, n, j) for s, n, j in needed if above_s < s < np.inf), default=None)
    return None if longest is None else longest[2]


def _start(
    snapshot: SchedulingSnapshot,
    tenancy: Tenancy,
    pool: Pool,
    shared: Ints,
    jobs: list[JobState],
    config: PlacementConfig,
    begun: Sequence[Allocation] = (),
    restart_s: float | None = None,
) -> tuple[list[Allocation], dict[int, tuple[int, float]]]:
    """Allocations to start; and by job number, GPU and finish plus delays of jobs to be shared."""
    if config.objective == "interference":
        return _assign(snapshot, tenancy, pool, shared, jobs, config), {}
    return start_at_price(snapshot, tenancy, pool, shared, jobs, config, begun, restart_s)


def _before_all(
    snapshot: SchedulingSnapshot, belief: SetCache, pool: Pool, job: JobState, config: PlacementConfig
) -> tuple[list[Allocation], Ints]:
    """The cheapest place now for the overdue job, and the GPUs that no other job may join in this decision.

    It does not wait for a better place, or it might wait forever; if nothing can take it, a place is vacated
    for it.
    """
    tenancy = Tenancy.of(snapshot, belief, config.max_members)
    if may_share(job):
        shared = shared_gpus(snapshot, tenancy, config.max_members)
        placed, _ = _start(snapshot, tenancy, pool, shared, [job], replace(config, wait=False))
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
    """The fastest type of each job, if there are enough empty GPUs for all, since nothing can beat that."""
    if len(jobs) > sum(pool.free_of_type):
        return None
    kinds = [int(np.argmin(solo_step_s(snapshot, belief, j.job.workload))) for j in jobs]
    return kinds if all(pool.free_of_type[k] >= kinds.count(k) for k in set(kinds)) else None


def _assign(
    snapshot: SchedulingSnapshot,
    tenancy: Tenancy,
    pool: Pool,
    shared: Ints,
    jobs: list[JobState],
    config: PlacementConfig,
) -> list[Allocation]:
    """As many jobs as possible with the least sum of the paper's scores; an empty GPU counts 0.

    Of equal sums, the one with the least time alone on the chosen types.
    """
    steps = np.array([solo_step_s(snapshot, tenancy.cache, j.job.workload) for j in jobs])
    # Equal empty GPUs are one column per type, repeated as often as there are jobs to take them.
    kinds = [k for k in range(len(snapshot.types)) for _ in range(min(pool.free_of_type[k], len(jobs)))]
    empty = np.where(np.isfinite(steps), 0.0, np.inf)[:, kinds]
    cost = np.column_stack([empty, offers(snapshot, tenancy, shared, jobs, config).score])
    alone_s = np.array([snapshot.left(j) for j in jobs])[:, None] * steps
    able = np.isfinite(cost)
    if able.any():
        time_s = alone_s[:, [*kinds, *snapshot.type_of[shared].tolist()]][able]
        cost[able] += _TIE * max(float(cost[able].max()), 1.0) * time_s / time_s.max()
    started: list[Allocation] = []
    for row, column in matched(cost):
        gpus = pool.take(1, kinds[column]) if column < len(kinds) else (int(shared[column - len(kinds)]),)
        if gpus:
            started.append(Allocation(jobs[row], gpus))
    return started


def isacpp(
    config: PlacementConfig,
    name: str = "isacpp",
    queue: QueueConfig = QueueConfig(),
    restart_s: float | None = 30.0,
) -> Policy:
    """The policy with custom settings."""
    decide_so = partial(decide, config=config, queue=queue, restart_s=restart_s)
    return Policy(name, decide_so, preemptive=restart_s is not None)


POLICY = isacpp(PlacementConfig(max_members=2))
INTERFERENCE = isacpp(
    PlacementConfig(objective="interference", max_members=2), "isacpp-interference", restart_s=None
)
MAKESPAN = isacpp(
    PlacementConfig(objective="makespan", max_members=2), "isacpp-makespan", QueueConfig("longest")
)
