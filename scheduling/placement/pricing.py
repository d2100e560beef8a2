"""The price of GPU time for the queue, and which jobs share, start or wait at that price.

A job that shares a GPU keeps it busy for longer, which delays every waiting job by its part of that. With n
jobs waiting for G GPUs, a second of GPU time adds n / G seconds to the sum of their completion times. At that
price, sharing is chosen only if it beats waiting for an empty GPU: with a long queue, this requires a pair
that does more together than in turn, and with a short one, partners that hardly interfere.

For the makespan, only GPU time counts, as long as no job ends later than everything else would.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from predictor.types import Floats
from scheduling.core.job import Allocation, JobState
from scheduling.core.set_cache import Ints
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gangs import Pool, solo_step_s, usable_types
from scheduling.placement.packing import Tenancy
from scheduling.placement.pairing import Pairs, offers
from scheduling.placement.ranking import PlacementConfig

# Longest time for which other jobs may extend the use of a GPU that a waiting job is to get next.
_LONGER_S = 1.0
# With the makespan as objective: GPU seconds that one second beyond its predicted end costs.
_LATE = 2.0


@dataclass(frozen=True, slots=True)
class _Costs:
    """Costs of one decision; [T] over device types.

    Attributes:
        waiting: jobs in the queue per GPU that jobs can use.
        values: [T] value of a GPU of each type; their mean is 1.
        end_s: predicted makespan; infinite if completion times are the objective.
    """

    waiting: float
    values: Floats
    end_s: float

    def share(self, pairs: Pairs, kinds: Ints) -> Floats:
        """[J, N] cost of joining shared GPUs of the types `kinds` [N]."""
        gpu_time = self.values[kinds] * pairs.extension_s
        if np.isinf(self.end_s):
            # All waiting jobs are delayed, including those earlier in the queue, because they wait for this
            # GPU.
            return pairs.score + self.waiting * gpu_time
        return np.where(np.isfinite(pairs.score), gpu_time + _LATE * pairs.late_s(self.end_s), np.inf)

    def alone(self, end: Floats, alone_s: Floats, behind: float) -> Floats:
        """[T] cost of running alone until `end` for `alone_s`, with `behind` jobs per GPU later in the queue."""
        offered = np.isfinite(end)
        gpu_time = self.values * np.where(offered, alone_s, 0.0)
        if np.isinf(self.end_s):
            return end + behind * gpu_time
        return np.where(offered, gpu_time + _LATE * np.maximum(end - self.end_s, 0.0), np.inf)


def start_at_price(
    snapshot: SchedulingSnapshot,
    tenancy: Tenancy,
    pool: Pool,
    shared: Ints,
    jobs: Sequence[JobState],
    config: PlacementConfig,
    begun: Sequence[Allocation],
    restart_s: float | None,
) -> tuple[list[Allocation], dict[int, tuple[int, float]]]:
    """Give each of `jobs`, in order, the cheapest of an empty GPU, a place beside others, or waiting.

    Args:
        snapshot: the cluster.
        tenancy: its tenants.
        pool: its empty GPUs.
        shared: GPUs with tenants and room.
        jobs: first jobs of the queue, one GPU each.
        config: configuration of the ranking.
        begun: what this decision has already started on empty GPUs.
        restart_s: cost of moving a job; None: jobs are not moved.

    Returns:
        The allocations to start; and by job number, GPU and finish plus delays in seconds of the jobs that
        are to share.
    """
    usable = usable_types(snapshot, tenancy.cache)
    count, gpus = len(snapshot.waiting), int(snapshot.type_size[usable].sum())
    steps = np.array([solo_step_s(snapshot, tenancy.cache, j.job.workload) for j in jobs])
    alone_s = np.array([snapshot.left(j) for j in jobs])[:, None] * steps
    departures = _Departures(snapshot, tenancy, begun)
    pairs = offers(snapshot, tenancy, shared, jobs, config)
    end_s = np.inf
    if config.objective == "makespan":
        end_s = _end_s(snapshot, tenancy, departures, pairs, alone_s.min(axis=1), gpus)
    costs = _Costs((count - 1) / gpus, _type_values(snapshot, steps, gpus), end_s)
    may_move = restart_s is not None and config.objective == "jct" and usable.sum() > 1
    sharing = costs.share(pairs, snapshot.type_of[shared])
    still_open, exchangeable = sharing.copy(), sharing.copy()
    joins: list[tuple[int, int]] = []
    started: list[Allocation] = []
    for position, job in enumerate(jobs):
        own, behind = alone_s[position], count - 1 - position
        next_s = departures.next_s()
        free = np.array(pool.free_of_type)
        end = np.where(free > 0, own, np.inf)
        if may_move and job.job.preemptible and free[usable].sum() > behind:
            # No job behind it needs the GPU, so it may start on a slow one.
            end = np.minimum(end, _ends_elsewhere(end, next_s, own, restart_s or 0.0))
        on_empty = costs.alone(end, own, behind / gpus)
        later = costs.alone(next_s + own if config.wait else np.full(len(own), np.inf), own, behind / gpus)
        beside = still_open[position].min(initial=np.inf)
        kind, wait_kind = int(on_empty.argmin()), int(later.argmin())
        if on_empty[kind] <= min(beside, later[wait_kind]) and np.isfinite(on_empty[kind]):
            taken = pool.take(1, kind)
            if taken:
                started.append(Allocation(job, taken))
                departures.add(kind, float(own[kind]))
        elif beside < later[wait_kind]:
            column = int(still_open[position].argmin())
            joins.append((position, column))
            departures.extend(int(shared[column]), float(pairs.extension_s[position, column]))
            still_open[:, column] = np.inf
        elif np.isfinite(later[wait_kind]):
            gpu = departures.wait(wait_kind, float(own[wait_kind]))
            # Reserved for it: later jobs may join only if they do not keep the GPU busy for longer.
            longer = (shared == gpu) & (pairs.extension_s > _LONGER_S)
            still_open[longer] = exchangeable[longer] = np.inf
    for position, column in joins:
        # Before a reservation, it may have joined the GPU for longer.
        exchangeable[position, column] = sharing[position, column]
    sharers: dict[int, tuple[int, float]] = {}
    for position, column in _match(exchangeable, joins):
        gpu = int(shared[column])
        started.append(Allocation(jobs[position], (gpu,)))
        sharers[jobs[position].number] = gpu, float(pairs.cost_s[position, column])
    return started, sharers


def _ends_elsewhere(end_s: Floats, next_s: Floats, alone_s: Floats, restart_s: float) -> Floats:
    """[T] when a job that starts now on each type is done if it moves to the best type at its next departure."""

    def moved(end: float) -> float:
        offers = zip(next_s.tolist(), alone_s.tolist(), strict=True)
        return min(
            (s + restart_s + (1.0 - s / end) * alone for s, alone in offers if s < end < np.inf),
            default=np.inf,
        )

    return np.array([moved(end) for end in end_s.tolist()])


def _match(sharing: Floats, joins: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(job, GPU) of the jobs that are to share, after they have exchanged places for the lowest sum of costs."""
    if len(joins) < 2:
        return joins
    rows = [position for position, _ in joins]
    return [(rows[row], column) for row, column in matched(sharing[rows])]


def matched(cost: Floats) -> list[tuple[int, int]]:
    """(row, column) of as many rows as possible with the lowest sum of costs [R, C]; infinite: not allowed."""
    able = np.isfinite(cost)
    if not able.any():
        return []
    # Above what any choice of rows can save, but no more, or rounding would hide the differences between costs.
    most = float(np.ptp(cost[able])) * min(cost.shape) + float(cost[able].max()) + 1.0
    rows, columns = linear_sum_assignment(np.where(able, cost, most))
    return [(int(r), int(c)) for r, c in zip(rows, columns, strict=True) if able[r, c]]


def _type_values(snapshot: SchedulingSnapshot, steps: Floats, gpus: int) -> Floats:
    """[T] value of a GPU of each type to these jobs; the mean over `gpus`, those that jobs can use, is 1."""
    speed = (steps.min(axis=1, keepdims=True) / steps).mean(axis=0)  # 0 where a job does not fit
    return np.asarray(speed * gpus / float(speed @ snapshot.type_size), float)


def _end_s(
    snapshot: SchedulingSnapshot,
    tenancy: Tenancy,
    departures: _Departures,
    pairs: Pairs,
    alone_s: Floats,
    gpus: int,
) -> float:
    """Predicted seconds until everything is done: total work over the GPUs, or the longest job.

    Args:
        snapshot: the cluster.
        tenancy: its tenants.
        departures: predicted departures.
        pairs: the first jobs of the queue on shared GPUs.
        alone_s: [J] of these jobs; what they would save by sharing is assumed for the others, too.
        gpus: number of GPUs that jobs can use.
    """
    longest, waiting = 0.0, 0.0
    for job in snapshot.waiting.values():
        needed_s = snapshot.left(job) * min(solo_step_s(snapshot, tenancy.cache, job.job.workload))
        longest, waiting = max(longest, needed_s), waiting + needed_s * job.job.gpus
    able = np.where(np.isfinite(pairs.score), pairs.extension_s, np.inf)
    shared_s = np.minimum(able.min(axis=1, initial=np.inf), alone_s)
    # Two on a GPU: no job costs less than half of its time alone, however long its neighbour runs anyway.
    part = max(float(shared_s.sum()) / float(alone_s.sum()), 0.5)
    return max(longest, (float(departures.ends_s.sum()) + part * waiting) / gpus)


class _Departures:
    """Predicted times at which GPUs of each type become empty, during one decision.

    Attributes:
        ends_s: [G] seconds until each GPU becomes empty.
    """

    def __init__(self, snapshot: SchedulingSnapshot, tenancy: Tenancy, begun: Sequence[Allocation]) -> None:
        self.ends_s = tenancy.empty_in_s(snapshot)
        self._type_of = snapshot.type_of
        busy = np.flatnonzero(snapshot.tenant_count > 0)
        self._heaps: list[list[tuple[float, int]]] = []
        for kind in range(len(snapshot.types)):
            gpus = busy[snapshot.type_of[busy] == kind]
            ordered = gpus[np.argsort(self.ends_s[gpus], kind="stable")]
            self._heaps.append(list(zip(self.ends_s[ordered].tolist(), ordered.tolist(), strict=True)))
        for allocation in begun:
            kind = int(snapshot.type_of[allocation.gpus[0]])
            step_s = solo_step_s(snapshot, tenancy.cache, allocation.job.job.workload)[kind]
            for _ in allocation.gpus:
                self.add(kind, snapshot.left(allocation.job) * step_s)

    def next_s(self) -> Floats:
        """[T] seconds until the first GPU of each type becomes empty; infinite if none is busy."""
        for heap in self._heaps:
            while heap and heap[0][1] >= 0 and heap[0][0] != self.ends_s[heap[0][1]]:
                heapq.heappop(heap)  # somebody joined since
        return np.array([heap[0][0] if heap else np.inf for heap in self._heaps])

    def add(self, kind: int, seconds: float) -> None:
        """Record that a job starts on an empty GPU."""
        heapq.heappush(self._heaps[kind], (seconds, -1))

    def extend(self, gpu: int, seconds: float) -> None:
        """Record that a job joins `gpu`."""
        self.ends_s[gpu] += seconds
        heapq.heappush(self._heaps[int(self._type_of[gpu])], (float(self.ends_s[gpu]), gpu))

    def wait(self, kind: int, seconds: float) -> int:
        """Record that a job waits for the next departure.

        Returns its GPU, -1 if another job goes there first.
        """
        end, gpu = heapq.heappop(self._heaps[kind])
        heapq.heappush(self._heaps[kind], (end + seconds, -1))
        return gpu
