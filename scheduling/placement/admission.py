"""Admission by priority: time sharing on whole GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from scheduling.core.job import Allocation, JobState
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gangs import Pool, exclusive_gpus, solo_step_s, usable_gpus

_Kind = tuple[tuple[int, ...], int]
"""What decides whether a waiting job finds room: numbers of the types that it fits on, and its GPUs."""


def admit_by_priority(
    snapshot: SchedulingSnapshot, belief: SetCache, order: Iterable[JobState]
) -> list[Allocation]:
    """The first jobs of `order` that fit run.

    Running jobs stay where they are, unless a waiting job before them finds no room otherwise: its GPUs may be
    scattered, or of types on which it does not fit. A non-preemptible job keeps its GPUs regardless of its position.
    A gang for which no node can be emptied leaves idle GPUs to later jobs, which give way as soon as one can.
    """
    jobs = _Replayable(order)
    hopeless: dict[_Kind, int] = {}
    while True:
        before = dict(hopeless)
        decisions = _admit(snapshot, belief, jobs, hopeless)
        if hopeless == before:
            return decisions


def _admit(
    snapshot: SchedulingSnapshot, belief: SetCache, order: Iterable[JobState], hopeless: dict[_Kind, int]
) -> list[Allocation]:
    """One pass: the first jobs of `order` by number of GPUs, without waiting ones that are hopeless.

    Args:
        hopeless: by kind, the position in `order` from which on no room was found; this pass adds its own.
    """

    def finds(position: int, kind: _Kind) -> bool:
        return position < hopeless.get(kind, position + 1)

    room = usable_gpus(snapshot, belief, up=True)
    bound = {job.number for job in snapshot.running.values() if not job.job.preemptible}
    room -= sum(len(snapshot.running[number].gpus) for number in bound)
    kept: list[tuple[int, JobState]] = []
    start: list[tuple[int, JobState]] = []
    for position, job in enumerate(order):
        if job.number in bound:
            continue
        need = len(job.gpus) or job.job.gpus
        if need <= room and (job.gpus or not hopeless or finds(position, _kind(snapshot, belief, job))):
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
    queue = [(position, job.number, job) for position, job in start]
    while queue:
        position, number, job = heappop(queue)
        gpus = exclusive_gpus(pool, belief, job)
        if not gpus and finds(position, kind := _kind(snapshot, belief, job)):
            gpus, evicted = _by_eviction(pool, belief, job, [e for e in reversed(kept) if e[0] > position])
            if not gpus:
                hopeless[kind] = position  # fewer jobs can be stopped for later ones of its kind
            for entry in evicted:
                kept.remove(entry)
                heappush(queue, (entry[0], entry[1].number, entry[1]))
        if gpus or job.gpus:
            placed[number] = Allocation(job, gpus)
    # Stop only jobs whose GPUs are needed; stopping others gains nothing.
    stopped = [Allocation(j) for j in spare if any(g in pool.taken for g in j.gpus)]
    return [*stopped, *placed.values()]


def _kind(snapshot: SchedulingSnapshot, belief: SetCache, job: JobState) -> _Kind:
    steps = solo_step_s(snapshot, belief, job.job.workload)
    return tuple(kind for kind, step_s in enumerate(steps) if step_s < float("inf")), job.job.gpus


class _Replayable:
    """An iterable that keeps what it has drawn from a long queue, to be read again from its beginning."""

    def __init__(self, jobs: Iterable[JobState]) -> None:
        self._drawn: list[JobState] = []
        self._rest = iter(jobs)

    def __iter__(self) -> Iterator[JobState]:
        yield from self._drawn
        for job in self._rest:
            self._drawn.append(job)
            yield job


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
