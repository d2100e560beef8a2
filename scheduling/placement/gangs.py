"""Shared by policies: whole empty GPUs for a gang, predicted solo times, and the order by them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from profiling.devices import get_device
from profiling.errors import UnknownNameError
from profiling.workload import Workload
from scheduling.core.job import JobState
from scheduling.core.set_cache import Ints, SetCache
from scheduling.core.state import SchedulingSnapshot


class Pool:
    """Empty GPUs while one decision is made: `take` reserves, nothing is written to the snapshot.

    Args:
        also: GPUs to count as empty although they have tenants (of jobs that this decision stops).

    Attributes:
        refused: (workload, GPUs) for which `exclusive_gpus` found none; as GPUs only become fewer, it finds
            none later either.
    """

    def __init__(self, snapshot: SchedulingSnapshot, also: Iterable[int] = ()) -> None:
        self.snapshot = snapshot
        self.free: Ints = snapshot.free.copy()
        self.free_of_type: list[int] = snapshot.free_of_type.tolist()
        self.taken: set[int] = set()
        self.refused: set[tuple[Workload, int]] = set()
        self.also = set(also)
        self.released: set[int] = set()
        for gpu in self.also:
            if snapshot.tenants[gpu]:
                self.free[snapshot.node_of[gpu]] += 1
                self.free_of_type[snapshot.type_of[gpu]] += 1

    def take(self, count: int, kind: int, scatter: bool = False) -> tuple[int, ...]:
        """`count` empty GPUs of type number `kind`, or none.

        They are on the node that they fill best. They are on several nodes (of one switch if possible,
        emptiest first) only if no node is large enough or, with `scatter`, if none has room.
        """
        if self.free_of_type[kind] < count:
            return ()
        snapshot = self.snapshot
        nodes = snapshot.nodes_of_type[kind]
        free = self.free[nodes]
        enough = free >= count
        if enough.any():
            best = int(nodes[np.where(enough, free, np.iinfo(np.int64).max).argmin()])
            return self._reserve([(best, count)])
        if not scatter and count <= int(snapshot.node_size[nodes].max()):
            return ()
        chosen: list[tuple[int, int]] = []
        for node in by_switch(snapshot, nodes.tolist(), free.tolist(), count):
            here = min(count, int(self.free[node]))
            chosen.append((node, here))
            count -= here
            if count == 0:
                return self._reserve(chosen)
        return ()

    def keep(self, gpus: Iterable[int]) -> None:
        """Withhold those of `gpus` that are empty."""
        for gpu in gpus:
            if gpu not in self.taken and (not self.snapshot.tenants[gpu] or gpu in self.also):
                self.taken.add(gpu)
                self.free[self.snapshot.node_of[gpu]] -= 1
                self.free_of_type[self.snapshot.type_of[gpu]] -= 1

    def copy(self) -> Pool:
        """An independent pool in the same state."""
        other = Pool(self.snapshot)
        other.free, other.free_of_type = self.free.copy(), self.free_of_type.copy()
        other.taken, other.also, other.refused = self.taken.copy(), self.also.copy(), self.refused.copy()
        other.released = self.released.copy()
        return other

    def release(self, gpus: Iterable[int]) -> None:
        """Count `gpus`, of jobs that this decision may stop, as empty too."""
        for gpu in gpus:
            self.also.add(gpu)
            self.released.add(gpu)
            self.free[self.snapshot.node_of[gpu]] += 1
            self.free_of_type[self.snapshot.type_of[gpu]] += 1
        self.refused.clear()

    def withdraw(self, gpus: Iterable[int]) -> None:
        """Undo `release` for GPUs that were not taken."""
        for gpu in gpus:
            self.also.discard(gpu)
            self.released.discard(gpu)
            self.free[self.snapshot.node_of[gpu]] -= 1
            self.free_of_type[self.snapshot.type_of[gpu]] -= 1

    def _reserve(self, chosen: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        snapshot = self.snapshot
        numbers_of_gang: list[int] = []
        for node, count in chosen:
            numbers = [
                g
                for g in snapshot.node_gpus[node]
                if g not in self.taken and (not snapshot.tenants[g] or g in self.also)
            ]
            # Those of jobs that need not be stopped come last.
            numbers_of_gang.extend(sorted(numbers, key=self.released.__contains__)[:count])
            self.free[node] -= count
            self.free_of_type[snapshot.node_type[node]] -= count
        self.taken.update(numbers_of_gang)
        return tuple(numbers_of_gang)


def by_switch(
    snapshot: SchedulingSnapshot, nodes: Sequence[int], free: Sequence[int], count: int
) -> list[int]:
    """`nodes` in the order in which a gang of `count` GPUs takes them.

    First come the nodes of the switch under which the gang needs the fewest nodes (among such switches, the
    one with the least room); if it fits under no switch, those of the switch with the most room. Under each
    switch, nodes are ordered by room, most first.

    Args:
        snapshot: the cluster.
        nodes: numbers of the nodes.
        free: GPUs of each node that it may take.
        count: GPUs of the gang.
    """
    under: dict[int, list[tuple[int, int]]] = {}
    for node, room in zip(nodes, free, strict=True):
        under.setdefault(int(snapshot.switch_of[node]), []).append((-room, node))

    def key(switch: int) -> tuple[float, int]:
        rooms = sorted(-room for room, _ in under[switch])[::-1]
        total, needed, left = sum(rooms), 0, count
        if total < count:
            return np.inf, -total
        while left > 0:
            left -= rooms[needed]
            needed += 1
        return needed, total

    return [node for switch in sorted(under, key=key) for _, node in sorted(under[switch])]


def solo_step_s(snapshot: SchedulingSnapshot, belief: SetCache, workload: Workload) -> list[float]:
    """Predicted seconds per step alone on each type of the cluster; infinite where it does not fit.

    A type on which it was tried and did not fit is excluded, whatever is predicted. A job predicted to fit on
    no type may be tried on the remaining one with the most memory: the bound may be too high, and otherwise
    it would never run.
    """
    refused = snapshot.refused
    memo: dict[Workload, list[float]]
    memo = snapshot.derived(("solo", belief), dict, (belief.revision, len(refused)))
    known = memo.get(workload)
    if known is None:
        number, alone, fits = belief.workload_id(workload), [], []
        possible = [kind for kind in range(len(snapshot.types)) if (workload, kind) not in refused]
        for kind, (device, sharing) in enumerate(zip(snapshot.types, snapshot.type_sharing, strict=True)):
            row = belief.solo(belief.device_id(device, sharing), number)
            alone.append(float(belief.step_time_s[row, 0]))
            fits.append(kind in possible and bool(belief.fits[row]))
        if possible and not any(fits):
            fits[_most_memory(snapshot.types, possible)] = True
        known = memo[workload] = [s if f else float("inf") for s, f in zip(alone, fits, strict=True)]
    return known


def usable_types(snapshot: SchedulingSnapshot, belief: SetCache) -> NDArray[np.bool_]:
    """[T] types that some running or waiting job can use; all of them if there is no such type.

    The GPUs of the others are not among those that the jobs share, and must not change a schedule.
    """
    queue = snapshot.waiting
    # Changes with the jobs and with where they may run; a policy may ask for each of many jobs.
    version = (
        *(len(queue), len(queue.entered), int(snapshot.stamp.sum())),
        *(belief.revision, len(snapshot.refused)),
    )
    return snapshot.derived(("usable", belief), lambda: _usable_types(snapshot, belief), version)


def _usable_types(snapshot: SchedulingSnapshot, belief: SetCache) -> NDArray[np.bool_]:
    sizes = snapshot.type_size.tolist()
    unused = set(range(len(sizes)))
    for job in snapshot.active():
        if job.gpus:  # it fits there, whatever is predicted
            unused.discard(int(snapshot.type_of[job.gpus[0]]))
        steps = solo_step_s(snapshot, belief, job.job.workload)
        least = job.job.gpu_range[0] if job.agent is None else 1
        unused -= {kind for kind in unused if steps[kind] < np.inf and sizes[kind] >= least}
        if not unused:  # mostly after the first job
            break
    usable = np.ones(len(sizes), bool)
    if len(unused) < len(sizes):
        usable[list(unused)] = False
    return usable


def usable_gpus(snapshot: SchedulingSnapshot, belief: SetCache, up: bool = False) -> int:
    """GPUs of the types that some running or waiting job can use; with `up`, without those that are down."""
    count = snapshot.up_of_type if up else snapshot.type_size
    return int(count[usable_types(snapshot, belief)].sum())


def _most_memory(types: Sequence[str], among: Sequence[int]) -> int:
    """The type among `among` with the most memory by the catalogue.

    The first if the catalogue has none of them.
    """

    def memory_bytes(kind: int) -> float:
        try:
            return get_device(types[kind]).memory_bytes
        except UnknownNameError:
            return 0.0

    return max(among, key=memory_bytes)


def remaining_s(snapshot: SchedulingSnapshot, belief: SetCache, job: JobState) -> float:
    """Predicted seconds that `job` still needs alone on the fastest type it fits on."""
    return snapshot.left(job) * min(solo_step_s(snapshot, belief, job.job.workload))


def shortness(snapshot: SchedulingSnapshot, belief: SetCache, job: JobState) -> tuple[float, int]:
    """Sort key: predicted time left alone on the fastest type over weight (Smith's rule), then submission."""
    return remaining_s(snapshot, belief, job) / job.job.priority, job.number


def shortest_first(
    snapshot: SchedulingSnapshot, belief: SetCache, jobs: Iterable[JobState]
) -> list[JobState]:
    """`jobs` by `shortness`."""
    return sorted(jobs, key=lambda job: shortness(snapshot, belief, job))


def exclusive_gpus(pool: Pool, belief: SetCache, job: JobState, count: int | None = None) -> tuple[int, ...]:
    """Whole empty GPUs of the fastest type that has enough of them, or none."""
    key = (job.job.workload, count or job.job.gpus)
    if key in pool.refused:  # in a long queue, most jobs are like another that was refused
        return ()
    steps = solo_step_s(pool.snapshot, belief, job.job.workload)
    for kind in sorted(range(len(steps)), key=steps.__getitem__):
        if steps[kind] < float("inf"):
            gpus = pool.take(key[1], kind)
            if gpus:
                return gpus
    pool.refused.add(key)
    return ()
