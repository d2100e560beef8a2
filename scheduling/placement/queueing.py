"""Order of a queue, prevention of starvation, and when GPUs are expected to become empty."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from profiling.checked_fields import check_range
from profiling.errors import InputError
from scheduling.core.job import JobState
from scheduling.core.set_cache import Ints, SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gangs import remaining_s, solo_step_s, usable_gpus
from scheduling.placement.packing import Tenancy

Key = tuple[float, ...]
ORDERS = ("fifo", "shortest", "longest")


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """Configuration of queue processing.

    Attributes:
        order: which waiting jobs are considered first: `fifo` by submission, `shortest` by the least
            predicted time left alone on the fastest type, `longest` by the most.
        batch: number of jobs decided at a time.
        aging_s: seconds of waiting after which a job is overdue. The overdue job submitted first is decided
            before all others; if nothing can take it, the GPUs that become empty for it first are reserved
            for it.
        critical_ratio: a job is critical if it needs, alone, more than this many times the total work per
            GPU, so that every second of waiting extends the makespan. With the objective `jct`, the longest
            critical job is decided first, and none is stopped for a shorter one; not in queues of more than
            eight batches. With `inf`, no job is critical.
        tolerance: with the objective `jct`, fraction by which the queue and its longest completion times may
            end later than with shortest job first, alone or packed blindly; otherwise a plainer decision is
            taken. With `inf`, this is not checked.
    """

    order: str = "shortest"
    batch: int = 64
    aging_s: float = 24 * 3600.0
    critical_ratio: float = 1.5
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise InputError("unknown order", expected="one of " + ", ".join(ORDERS), got=self.order)
        check_range(self, lambda value: value >= 1, "an integer from 1", "batch")
        check_range(self, lambda value: value >= 0, "seconds from 0", "aging_s")
        check_range(self, lambda value: value >= 0, "a ratio from 0", "tolerance")
        check_range(self, lambda value: value > 0, "a number above 0", "critical_ratio")


@dataclass(slots=True, eq=False)
class KeptOrder:
    """Waiting jobs sorted by a key, then by submission; updated from the queue's log.

    In a long queue, sorting every job takes longer than the decision.
    """

    entries: list[tuple[Key, int]] = field(default_factory=list)
    key_of: dict[int, Key] = field(default_factory=dict)
    read: int = -1

    def jobs(
        self,
        snapshot: SchedulingSnapshot,
        key: Callable[[JobState], Key],
        changed: Iterable[JobState] = (),
    ) -> Iterator[JobState]:
        """The waiting jobs in order.

        Args:
            key: called once for each job that has joined the queue, and for those in `changed`.
            changed: jobs whose key has changed while they waited.
        """
        queue = snapshot.waiting
        if self.read < 0:
            self.key_of = {number: key(job) for number, job in queue.items()}
            self.entries = self._sorted()
        else:
            for job in [*queue.entered[self.read :], *changed]:
                if job.number in queue:
                    self._put(job.number, key(job))
        self.read = len(queue.entered)
        if len(self.entries) > 2 * len(queue) + 64:
            self.key_of = {n: known for n, known in self.key_of.items() if n in queue}
            self.entries = self._sorted()
        return (queue[number] for _, number in list(self.entries) if number in queue)

    def _put(self, number: int, key: Key) -> None:
        old = self.key_of.get(number)
        if old == key:
            return
        if old is not None:
            del self.entries[bisect_left(self.entries, (old, number))]
        self.key_of[number] = key
        insort(self.entries, (key, number))

    def _sorted(self) -> list[tuple[Key, int]]:
        return sorted((known, number) for number, known in self.key_of.items())


def in_order(snapshot: SchedulingSnapshot, belief: SetCache, order: str = "shortest") -> Iterator[JobState]:
    """The waiting jobs by `order`, one of `ORDERS`; ties go to the job submitted first."""
    if order == "fifo":
        return iter(list(snapshot.waiting.values()))

    def length(job: JobState) -> Key:
        seconds = remaining_s(snapshot, belief, job)
        return (seconds / job.job.priority if order == "shortest" else -seconds,)  # Smith's rule

    version = (belief.revision, len(snapshot.refused))
    return snapshot.derived(("by-length", order, belief), KeptOrder, version).jobs(snapshot, length)


def first_overdue(snapshot: SchedulingSnapshot, belief: SetCache, aging_s: float) -> JobState | None:
    """The job submitted first among those that have waited at least `aging_s`.

    Jobs too large for the cluster are skipped.
    """
    for job in snapshot.waiting.values():
        if job.waited_s + snapshot.now_s - job.waiting_since_s >= aging_s:
            steps = np.array(solo_step_s(snapshot, belief, job.job.workload))
            if (np.isfinite(steps) & (snapshot.type_size >= job.job.gpus)).any():
                return job
        elif job.started_s is None:
            return None  # jobs that were submitted later and never ran have not waited longer
    return None


def work_s(snapshot: SchedulingSnapshot, tenancy: Tenancy) -> float:
    """Predicted seconds until everything is done if the work were spread evenly over all GPUs that jobs can use.

    New sharing is not assumed.
    """
    waiting = sum(remaining_s(snapshot, tenancy.cache, j) * j.job.gpus for j in snapshot.waiting.values())
    return (float(tenancy.empty_in_s(snapshot).sum()) + waiting) / usable_gpus(snapshot, tenancy.cache)


def first_empty(snapshot: SchedulingSnapshot, belief: SetCache, tenancy: Tenancy, job: JobState) -> Ints:
    """The whole GPUs on which `job` would finish first if no other job were placed on them.

    They are on one node, as for a gang, unless no node is large enough; none if the cluster is too small.
    """
    ends = tenancy.empty_in_s(snapshot)
    count, left = job.job.gpus, snapshot.left(job)
    earliest_s, earliest = np.inf, np.zeros(0, np.int64)
    for kind, step in enumerate(solo_step_s(snapshot, belief, job.job.workload)):
        nodes: Sequence[Ints] = [np.array(snapshot.node_gpus[n]) for n in snapshot.nodes_of_type[kind]]
        for gpus in [n for n in nodes if len(n) >= count] or [np.concatenate(nodes)]:
            first = gpus[np.argsort(ends[gpus], kind="stable")[:count]]
            if len(first) < count:
                continue
            done_s = float(ends[first].max()) + left * step
            if done_s < earliest_s:
                earliest_s, earliest = done_s, first
    return earliest
