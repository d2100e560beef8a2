"""Admission by priority: time sharing on whole GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from profiling.workload import Workload
from scheduling.core.job import Allocation, JobState
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gangs import Pool, exclusive_gpus, usable_gpus


def admit_by_priority(
    snapshot: SchedulingSnapshot, belief: SetCache, order: Iterable[JobState]
) -> list[Allocation]:
    """The first jobs of `order` that fit run.

    Running jobs stay where they are, unless a waiting job before them finds no room otherwise: its GPUs may be
    scattered, or of types on which it does not fit. A non-preemptible job keeps its GPUs regardless of its position.
    """
    room = usable_gpus(snapshot, belief, up=True)
    bound = {job.number for job in snapshot.running.values() if not job.job.preemptible}
    room -= sum(len(snapshot.running[number].gpus) for number in bound)
    kept: list[tuple[int, JobState]] = []
    start: list[tuple[int, JobState]] = []
    for position, job in enumerate(order):
        if job.number in bound:
            continue
        need = len(job.gpus) or job.job.gpus
        if need <= room:
            room -= need
            (kept if job.gpus else start).append((position, job))
        if room == 0:
            break
    if not start:
        return []
    stays = bound | {job.number for _, job in kept}
    spare = [j for j in snapshot.running.values() if j.number not in stays]
    pool = Pool(snapshot, (g for j in spare for g in j.gpus))
    placed: dict[int, Allocation] = {}
    hopeless: set[tuple[Workload, int]] = set()
    queue = [(position, job.number, job) for position, job in start]
    while queue:
        position, number, job = heappop(queue)
        gpus = exclusive_gpus(pool, belief, job)
        kind = (job.job.workload, job.job.gpus)
        if not gpus and kind not in hopeless:
            gpus, evicted = _by_eviction(pool, belief, job, [e for e in reversed(kept) if e[0] > position])
            if not gpus:
                hopeless.add(kind)  # fewer jobs can be stopped for later ones of its kind
            for entry in evicted:
                kept.remove(entry)
                heappush(queue, (entry[0], entry[1].number, entry[1]))
        if gpus or job.gpus:
            placed[number] = Allocation(job, gpus)
    # Stop only jobs whose GPUs are needed; stopping others gains nothing.
    stopped = [Allocation(j) for j in spare if any(g in pool.taken for g in j.gpus)]
    return [*stopped, *placed.values()]


def _by_eviction(
    pool: Pool, belief: SetCache, job: JobState, later: list[tuple[int, JobState]]
) -> tuple[tuple[int, ...], list[tuple[int, JobState]]]:
    """GPUs for `job` if some of the first of `later` are stopped, and these; none if all would not suffice."""
    count = 1
    while later:
        candidates = later[:count]
        pool.release(gpu for _, other in candidates for gpu in other.gpus)
        gpus = exclusive_gpus(pool, belief, job)
        evicted = [entry for entry in candidates if not set(gpus).isdisjoint(entry[1].gpus)]
        pool.withdraw(gpu for entry in candidates if entry not in evicted for gpu in entry[1].gpus)
        if gpus or count >= len(later):
            return gpus, evicted
        count *= 2
    return (), []
