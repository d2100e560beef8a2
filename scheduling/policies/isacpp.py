"""ISACPP: simulates every GPU stage by stage with the job on it, and decides the waiting jobs together.

Liu et al., IEEE TPDS 36(8), 2025. Beyond the paper: the default objective is the increase of the sum of completion
times with the whole queue in view (`scheduling.placement.pricing`), waiting is an answer, and a job that shares a GPU
moves to one that becomes empty if that outweighs its restart.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

import numpy as np

from scheduling.core.job import Allocation, JobState
from scheduling.core.policy import Policy
from scheduling.core.set_cache import Ints, SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gangs import Pool, exclusive_gpus, remaining_s, solo_step_s, usable_types
from scheduling.placement.guard import guarded
from scheduling.placement.making_room import by_moving
from scheduling.placement.migrating import migrate
from scheduling.placement.packing import Tenancy, may_share, shared_gpus
from scheduling.placement.pairing import offer_again, offers
from scheduling.placement.preempting import preempt
from scheduling.placement.pricing import matched, start_at_price
from scheduling.placement.queueing import QueueConfig, first_empty, first_overdue, in_order, work_s
from scheduling.placement.ranking import PlacementConfig

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
    unguarded = config.objective != "jct" or config.max_members != 2 or restart_s is None
    if unguarded or overdue is not None or queue.tolerance == np.inf:
        return propose(queue)
    proposed: list[Allocation] = []

    def keep(queue: QueueConfig) -> list[Allocation]:
        decisions = propose(queue)
        proposed.extend(a for a in decisions if a.job.number in snapshot.waiting)
        return decisions

    proposals = [partial(keep, q) for q in (queue, replace(queue, critical_ratio=_ANY))]
    chosen = guarded(snapshot, belief, proposals, queue.tolerance, config.max_slowdown, restart_s or 0.0)
    begun = {(a.job.number, a.gpus) for a in chosen}
    discarded = [a for a in proposed if (a.job.number, a.gpus) not in begun]
    if discarded:
        offer_again(snapshot, belief, config, discarded)
    return chosen


def _propose(
    snapshot: SchedulingSnapshot,
    belief: SetCache,
    config: PlacementConfig,
    queue: QueueConfig,
    restart_s: float | None,
    overdue: JobState | None,
) -> list[Allocation]:
    """The cheapest decision by the price of GPU time, with `overdue` first."""
    decision = _Decision(snapshot, belief, config, queue, restart_s)
    if overdue is not None:
        decision.start_overdue(overdue)
    waiting = (j for j in in_order(snapshot, belief, queue.order) if j is not overdue)
    head = list(islice(waiting, _LOOK * queue.batch))
    decision.start_gangs([j for j in head if not may_share(j)][: queue.batch])
    # A queue longer than the part considered is far from its end.
    at_end = len(head) + (overdue is not None) >= len(snapshot.waiting)
    decision.start_singles([j for j in head if may_share(j)], at_end)
    decision.move_to_empty()
    return decision.started


@dataclass(slots=True, eq=False)
class _Decision:
    """One decision, kind of job by kind of job.

    Attributes:
        tenancy: the tenants when it began.
        pool: GPUs that are still empty.
        started: what is decided.
        kept: GPUs that no other job may join.
    """

    snapshot: SchedulingSnapshot
    belief: SetCache
    config: PlacementConfig
    queue: QueueConfig
    restart_s: float | None
    tenancy: Tenancy = field(init=False)
    pool: Pool = field(init=False)
    started: list[Allocation] = field(default_factory=list)
    kept: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        self.tenancy = Tenancy.of(self.snapshot, self.belief, self.config.max_members)
        self.pool = Pool(self.snapshot)

    def start_overdue(self, job: JobState) -> None:
        """Give the overdue job its cheapest place now.

        It does not wait for a better place, or it might wait forever; if nothing can take it, a place is vacated
        for it.
        """
        if may_share(job):
            placed, _ = self._place([job], self._shared(), replace(self.config, wait=False), None)
            if placed:
                self.started, self.kept = placed, np.array(placed[0].gpus, np.int64)
                return
        gpus = exclusive_gpus(self.pool, self.belief, job)
        if gpus:
            self.started.append(Allocation(job, gpus))
            return
        self.kept = first_empty(self.snapshot, self.belief, self.tenancy, job)
        self.pool.keep(self.kept.tolist())

    def start_gangs(self, gangs: list[JobState]) -> None:
        """Start gangs on whole GPUs, for which running jobs may move."""
        too_large = np.inf  # GPUs of the smallest gang for which no jobs could move
        for job in gangs:
            size = job.job.gpus
            gpus = exclusive_gpus(self.pool, self.belief, job)
            may_move = self.restart_s is not None and size <= sum(self.pool.free_of_type) and size < too_large
            if not gpus and may_move:
                gpus = self._make_room(job)
                too_large = too_large if gpus else size
            if gpus:
                self.started.append(Allocation(job, gpus))

    def _make_room(self, job: JobState) -> tuple[int, ...]:
        """GPUs for a gang, after moves of running jobs that cost less than it needs; none without such moves."""
        snapshot = self.snapshot
        moved = {a.job.number for a in self.started}
        alone = [
            j
            for j in snapshot.running.values()
            if snapshot.movable(j)
            and j.number not in moved
            and all(snapshot.tenant_count[gpu] == 1 for gpu in j.gpus)
        ]
        pool, gpus, places = by_moving(self.pool, self.belief, job, job.job.gpus, alone)
        cost_s = (self.restart_s or 0.0) * sum(map(len, places.values()))
        if not gpus or cost_s >= remaining_s(snapshot, self.belief, job) * job.job.gpus:
            return ()
        self.pool = pool
        moves = [Allocation(snapshot.running[number], place) for number, place in places.items()]
        self.started += moves
        left = [gpu for move in moves for gpu in move.job.gpus]
        self.kept = np.union1d(self.kept, left).astype(np.int64)
        return gpus

    def start_singles(self, jobs: list[JobState], at_end: bool) -> None:
        """Start jobs on one GPU each, empty or shared, or let them wait.

        Args:
            at_end: no others wait, so that the longest of them may decide when everything ends.
        """
        restart_s, objective = self.restart_s, self.config.objective
        if (objective != "makespan" and self._start_on_fastest(jobs)) or not jobs:
            return
        longest_s, critical = np.inf, None
        if objective == "jct" and at_end:
            longest_s = self.queue.critical_ratio * work_s(self.snapshot, self.tenancy)
            critical = self._longest(jobs, longest_s)
            if critical is not None:
                jobs = [critical, *(j for j in jobs if j is not critical)]
        shared = np.setdiff1d(self._shared(), self.kept, assume_unique=True)
        empty = np.array(self.pool.free_of_type)[usable_types(self.snapshot, self.belief)]
        if not shared.size and not empty.any():
            return
        jobs = jobs[: self.queue.batch]
        placed, sharing = self._place(jobs, shared, self.config, restart_s)
        if restart_s is not None and objective == "jct":
            on_empty = {a.job.number for a in placed} - set(sharing)
            rest = [j for j in jobs if j.number not in on_empty and j is not critical]
            used = {gpu for a in [*self.started, *placed] for gpu in (*a.gpus, *a.job.gpus)}
            swaps = preempt(
                self.snapshot, self.tenancy, rest, self.config, restart_s, used, sharing, longest_s
            )
            swapped = {a.job.number for a in swaps}
            placed = [a for a in placed if a.job.number not in swapped] + swaps
        self.started += placed

    def _start_on_fastest(self, jobs: list[JobState]) -> bool:
        """Start all on the fastest type of each, if there are enough empty GPUs, since nothing can beat that."""
        if len(jobs) > sum(self.pool.free_of_type):
            return False
        kinds = [int(np.argmin(solo_step_s(self.snapshot, self.belief, j.job.workload))) for j in jobs]
        if any(self.pool.free_of_type[kind] < kinds.count(kind) for kind in set(kinds)):
            return False
        self.started += [Allocation(j, self.pool.take(1, kind)) for j, kind in zip(jobs, kinds, strict=True)]
        return True

    def _longest(self, jobs: list[JobState], above_s: float) -> JobState | None:
        """The longest of `jobs` that needs more than `above_s` alone, except those that fit nowhere."""
        needed = ((remaining_s(self.snapshot, self.belief, j), j.number, j) for j in jobs)
        return max((one for one in needed if above_s < one[0] < np.inf), default=(0.0, 0, None))[2]

    def _shared(self) -> Ints:
        return shared_gpus(self.snapshot, self.tenancy, self.config.max_members)

    def _place(
        self, jobs: list[JobState], shared: Ints, config: PlacementConfig, restart_s: float | None
    ) -> tuple[list[Allocation], dict[int, tuple[int, float]]]:
        """Allocations to start; and by job number, GPU and finish plus delays of jobs to be shared."""
        given = self.snapshot, self.tenancy, self.pool, shared, jobs, config
        if config.objective == "interference":
            return _assign(*given), {}
        return start_at_price(*given, self.started, restart_s)

    def move_to_empty(self) -> None:
        """Move running jobs to the empty GPUs that no other job wants, unless some have moved for a gang."""
        everyone = len(self.started) == len(self.snapshot.waiting)
        if self.restart_s is None or not everyone or any(a.job.gpus for a in self.started):
            return
        joined = {gpu for allocation in self.started for gpu in allocation.gpus}
        makespan = self.config.objective == "makespan"
        self.started += migrate(self.snapshot, self.tenancy, self.pool, self.restart_s, joined, makespan)


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
