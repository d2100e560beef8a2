"""Shared by resizing policies: sizes on a ladder, goodput by size, and GPUs for chosen sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from scheduling.core.job import Allocation, JobState
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gangs import Pool, solo_step_s, usable_types
from scheduling.placement.making_room import by_moving, gpus_of_size
from scheduling.placement.progress import progress_per_s
from scheduling.sia.agent import Agent


def ladder(snapshot: SchedulingSnapshot, belief: SetCache, job: JobState) -> list[int]:
    """Sizes that `job` may have: its own if it cannot be resized, otherwise powers of two within its range.

    None is larger than the types on which it fits, because it could never get more GPUs.
    """
    least, most = job.job.gpu_range
    if isinstance(job.agent, Agent) and job.job.kind != "rigid":
        least, most = 1, job.agent.most_gpus()
    elif least == most:
        return [job.job.gpus]
    steps = solo_step_s(snapshot, belief, job.job.workload)
    most = min(most, int(snapshot.type_size[np.isfinite(steps)].max(initial=0)))
    return [2**k for k in range(17) if least <= 2**k <= most] or [job.job.gpus]


def speeds(
    snapshot: SchedulingSnapshot, belief: SetCache, job: JobState, sizes: list[int], held: bool = True
) -> list[float]:
    """Predicted progress per second at each size, on the type it holds, or the cluster's first that jobs can use.

    Other types are ignored.

    Args:
        held: whether the type that it holds matters; otherwise it is the first in any case, by which jobs
            can be compared.
    """
    own = job.gpus and held
    kind = int(snapshot.type_of[job.gpus[0]] if own else usable_types(snapshot, belief).argmax())
    if isinstance(job.agent, Agent):
        device = snapshot.types[kind]
        per_node = snapshot.gpus_per_node
        nodes = np.array([-(-s // per_node[device]) for s in sizes], float)
        goodput = job.agent.goodput(device, nodes, np.array(sizes, float), per_node)
        if goodput is not None:
            # Its iterations are steps of the initial batch, its goodput is in samples.
            return [float(v) for v in goodput / job.agent.application.batches[0]]
    steps = solo_step_s(snapshot, belief, job.job.workload)
    if not np.isfinite(steps[kind]):
        kind = int(np.argmin(steps))
    if isinstance(job.agent, Agent):  # it has observed nothing so far
        return [size / steps[kind] for size in sizes]
    return [float(v) for v in progress_per_s(snapshot, belief, job, kind, sizes)]


def best_sizes(rows: Sequence[tuple[Sequence[int], Sequence[float]]], gpus: int) -> list[int]:
    """One size per job with the lowest sum of costs, on at most `gpus` GPUs, by exact dynamic programming.

    Args:
        rows: by job, the sizes it may have, smallest first, and the cost of each. The smallest sizes fit
            together.
        gpus: number of GPUs.
    """
    if not rows:
        return []
    cost = np.zeros(gpus + 1)
    picks = np.zeros((len(rows), gpus + 1), np.int64)
    for row, (sizes, costs) in enumerate(rows):
        total_cost = np.full((len(sizes), gpus + 1), np.inf)
        for k, (size, own) in enumerate(zip(sizes, costs, strict=True)):
            if size <= gpus:
                total_cost[k, size:] = cost[: gpus + 1 - size] + own
        picks[row] = total_cost.argmin(axis=0)  # the smallest in case of a tie
        cost = np.take_along_axis(total_cost, picks[row][None, :], axis=0)[0]
    chosen, left = [0] * len(rows), gpus
    for row in range(len(rows) - 1, -1, -1):
        chosen[row] = rows[row][0][int(picks[row, left])]
        left -= chosen[row]
    return chosen


def allocate_sizes(
    snapshot: SchedulingSnapshot, belief: SetCache, sizes: Mapping[int, int]
) -> list[Allocation]:
    """Decisions that give every active job the size chosen for it (job number -> GPUs; 0 or absent: none).

    If the free GPUs are too scattered for that size, it gets its next smaller one, or else running jobs move to make
    room on a node. If that fails too, jobs that were given none may use the GPUs meanwhile.
    """
    active = list(snapshot.active())
    changed = [j for j in active if len(j.gpus) != sizes.get(j.number, 0)]
    locked = {j.number for j in active if j.gpus and not snapshot.movable(j)}
    pool = Pool(snapshot, (g for j in changed if j.number not in locked for g in j.gpus))
    given: dict[int, tuple[int, ...]] = {}
    changing = {j.number for j in changed}
    stay = {j.number: j for j in active if j.gpus and j.number not in locked | changing}
    unplaced = False
    for job in sorted(changed, key=lambda j: (-sizes.get(j.number, 0), j.number)):
        if job.number in locked:
            continue
        size = sizes.get(job.number, 0)
        rungs = [size, *(k for k in reversed(ladder(snapshot, belief, job)) if k < size)] if size else []
        gpus = next(filter(None, (gpus_of_size(pool, belief, job, rung) for rung in rungs)), ())
        if size and not gpus:
            pool, gpus, moved = by_moving(pool, belief, job, size, list(stay.values()))
            given |= moved
            for number in moved:
                del stay[number]
        given[job.number] = gpus
        unplaced |= bool(size and not gpus)
    if unplaced:
        idle = [j for j in active if not sizes.get(j.number, 0) and j.number not in locked]
        for job in sorted(idle, key=lambda j: (not j.gpus, j.number)):
            least = len(job.gpus) or ladder(snapshot, belief, job)[0]
            given[job.number] = gpus_of_size(pool, belief, job, least)
    return [
        Allocation(j, given[j.number])
        for j in active
        if j.number in given and set(given[j.number]) != set(j.gpus)
    ]
