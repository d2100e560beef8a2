"""Jobs on a cluster under a plain rule: shortest job first, alone or with blind packing of pairs, or critical jobs first.

The simulator under `sjf` gives the same (a test requires equal end and mean), but keeps a policy, states and
records for every job: eleven times as long for 100 to 400 waiting jobs, and each decision is projected
several times.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot

_EPS = 1e-9
_MANY = 100


class PlainRule(NamedTuple):
    """Shortest job first on empty GPUs.

    Attributes:
        pack: whether a waiting job may join a single tenant.
        critical_ratio: the last job of the queue goes first if it alone takes more than this many times the
            work per GPU; `inf`: never.
        patient: whether a single-GPU job waits for a faster type if it would end earlier there.
    """

    pack: bool
    critical_ratio: float = np.inf
    patient: bool = False


class Outcome(NamedTuple):
    """Figures of a completed schedule, in seconds of the snapshot's clock.

    Attributes:
        end_s: when the last job is done.
        tail_s: mean completion time of the longest 1 % of the jobs, at least two.
        mean_s: mean completion time.
        p99_s: 99th percentile of the completion times; 0 with fewer than 100 jobs, where it lies between the two
            longest, as `tail_s` does.
    """

    end_s: float
    tail_s: float
    mean_s: float
    p99_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PlainJob:
    """A job as numbers: workload of the cache, submission, seconds per step alone by type, and sort key.

    Attributes:
        counts: whether it counts in the outcome; not if it stands for a GPU that is down.
    """

    workload: int
    submit_s: float
    gpus: int
    shares: bool
    solo: Sequence[float]
    key: float
    counts: bool = True


class Steps:
    """Predicted seconds per step, alone and in pairs, by type number; each is queried once."""

    def __init__(self, snapshot: SchedulingSnapshot, belief: SetCache, max_slowdown: float) -> None:
        self._belief, self._max_slowdown = belief, max_slowdown
        self._devices = list(map(belief.device_id, snapshot.types, snapshot.type_sharing))
        self._known: dict[tuple[int, int, int], tuple[float, float, bool]] = {}
        self._revision = belief.revision

    def pair(self, kind: int, first: int, second: int) -> tuple[float, float, bool]:
        """Seconds per step of each, and whether they may share."""
        belief = self._belief
        if belief.revision != self._revision:
            self._known, self._revision = {}, belief.revision
        key = (kind, first, second)
        known = self._known.get(key)
        if known is None:
            (row,), (columns,) = belief.pairs(self._devices[kind], np.array([[first, second]]))
            step_s = belief.step_time_s[row, columns].tolist()
            may = bool(belief.fits[row]) and float(belief.slowdown[row, :2].max()) <= self._max_slowdown
            known = self._known[key] = (step_s[0], step_s[1], may)
        return known


class PlainSchedule:
    """A cluster under a plain rule.

    Gangs hold whole GPUs of one type, wherever those are.

    Args:
        steps: predicted step times.
        kinds: type number of every GPU.
        jobs: jobs by number.
        left: iterations left by number.
        tenants: numbers of the jobs on every GPU.
        now_s: time of the snapshot.
        rule: the rule.
    """

    def __init__(
        self,
        steps: Steps,
        kinds: Sequence[int],
        jobs: dict[int, PlainJob],
        left: dict[int, float],
        tenants: list[list[int]],
        now_s: float,
        rule: PlainRule,
    ) -> None:
        self.jobs, self.rule, self.now_s = jobs, rule, now_s
        self.left, self.tenants = left, tenants
        self.queue: list[int] = []
        self.ended: list[float] = []
        self.end_s = 0.0
        self.first_s = min((j.submit_s for j in jobs.values() if j.counts), default=now_s)
        self._steps, self._kinds = steps, kinds
        self._held: dict[int, list[int]] = {}
        for gpu, members in enumerate(tenants):
            for number in members:
                self._held.setdefault(number, []).append(gpu)
        self._since, self._version = [now_s] * len(kinds), [0] * len(kinds)
        # When each GPU would be empty if its jobs ran one after another; work of the queue on the fastest types.
        self._due_s, self._queued_s = [now_s] * len(kinds), 0.0
        # GPUs of the types that some job so far can use; the other types with the number of their GPUs.
        self._usable, self._unused = 0, dict(Counter(kinds))
        for number, job in jobs.items():
            if job.counts and self._unused:
                self._use(job, {kinds[gpu] for gpu in self._held.get(number, ())})
        self._pace: list[list[float]] = [[] for _ in kinds]
        self._events: list[tuple[float, int, int]] = []
        self._empty: list[set[int]] = [set() for _ in range(max(kinds) + 1)]
        for gpu, members in enumerate(tenants):
            if members:
                self._go_on(gpu)
            else:
                self._empty[kinds[gpu]].add(gpu)

    def copy(self) -> PlainSchedule:
        """A copy that can be followed independently."""
        other = object.__new__(PlainSchedule)
        other.__dict__.update(self.__dict__)
        for name in (
            "jobs",
            "left",
            "queue",
            "ended",
            "_held",
            "_since",
            "_version",
            "_due_s",
            "_pace",
            "_events",
        ):
            setattr(other, name, getattr(self, name).copy())
        other.tenants = [members.copy() for members in self.tenants]
        other._empty = [gpus.copy() for gpus in self._empty]
        return other

    @property
    def next_s(self) -> float:
        """When the first GPU changes; infinite if none does."""
        return self._events[0][0] if self._events else np.inf

    def submit(self, jobs: Iterable[tuple[int, PlainJob, float]], now_s: float) -> dict[int, tuple[int, ...]]:
        """Queue jobs, given by number with their iterations; returns the GPUs of all that start at once."""
        self.run(now_s)
        self.now_s = max(self.now_s, now_s)
        for number, job, left in jobs:
            self.jobs[number], self.left[number] = job, left
            if self._unused:
                self._use(job)
            self.queue.append(number)
            self._queued_s += self._work_s(number)
        self.queue.sort(key=lambda n: (self.jobs[n].key, n))
        before = len(self.queue)
        waiting = self.queue.copy()
        for gpu in sorted(self._start_alone()):
            self._go_on(gpu)
        if self.rule.pack and self.queue:
            self._start_beside(range(len(self._kinds)))
        if len(self.queue) == before:
            return {}
        return {n: tuple(self._held[n]) for n in waiting if n in self._held}

    def run(self, until_s: float = np.inf) -> None:
        """Follow the schedule up to a time."""
        while self._events and self._events[0][0] <= until_s:
            when, gpu, version = heapq.heappop(self._events)
            if version == self._version[gpu]:
                self.now_s = when
                self._depart(gpu)

    def outcome(self, done: Sequence[float] = ()) -> Outcome:
        """Outcome of the schedule, followed to its end; jobs too large for the cluster are skipped.

        Args:
            done: completion times of jobs done before it began, which count too.
        """
        self.run()
        ended = [*done, *self.ended]
        worst = heapq.nlargest(max(2, len(ended) // 100), ended)
        p99_s = float(np.percentile(ended, 99)) if len(ended) >= _MANY else 0.0
        return Outcome(self.end_s, sum(worst) / max(len(worst), 1), sum(ended) / max(len(ended), 1), p99_s)

    def _go_on(self, gpu: int) -> None:
        """Set the pace of the tenants of `gpu` from now on."""
        members, kind = self.tenants[gpu], self._kinds[gpu]
        if len(members) == 2:
            first, second = members
            pair = self._steps.pair(kind, self.jobs[first].workload, self.jobs[second].workload)
            self._pace[gpu] = [pair[0], pair[1]]
        else:
            self._pace[gpu] = [self.jobs[n].solo[kind] for n in members]
        self._since[gpu] = self.now_s
        self._due_s[gpu] = self.now_s + sum(self.left[n] * self.jobs[n].solo[kind] for n in members)
        self._version[gpu] += 1
        if members and self._held[members[0]][0] == gpu:
            soonest = min(max(self.left[n], 0.0) * s for n, s in zip(members, self._pace[gpu], strict=True))
            heapq.heappush(self._events, (self.now_s + soonest, gpu, self._version[gpu]))

    def _progress(self, gpu: int) -> None:
        for n, step in zip(self.tenants[gpu], self._pace[gpu], strict=True):
            self.left[n] -= (self.now_s - self._since[gpu]) / step
        self._since[gpu] = self.now_s

    def _depart(self, gpu: int) -> None:
        self._progress(gpu)
        need = {n: self.left[n] * s for n, s in zip(self.tenants[gpu], self._pace[gpu], strict=True)}
        least, touched = min(need.values()) + _EPS, [gpu]
        for n in [n for n, seconds in need.items() if seconds <= least]:
            job = self.jobs.pop(n)
            if job.counts:
                self.ended.append(self.now_s - job.submit_s)
                self.end_s = self.now_s
            del self.left[n]
            for own in self._held.pop(n):
                self.tenants[own].remove(n)
                if not self.tenants[own]:
                    self._empty[self._kinds[own]].add(own)
                    self._due_s[own] = self.now_s
                if own != gpu:
                    touched.append(own)
        if self.queue:
            touched += [g for g in self._start_alone() if g not in touched]
        for own in touched:
            self._go_on(own)
        if self.rule.pack and self.queue:
            self._start_beside(touched)

    def _use(self, job: PlainJob, held: Collection[int] = ()) -> None:
        """Count the GPUs of the types that `job` can use, and of those that it holds, as usable."""
        unused = self._unused.items()
        used = {k for k, size in unused if k in held or (job.solo[k] < np.inf and size >= job.gpus)}
        self._usable += sum(self._unused[k] for k in used)
        self._unused = {k: size for k, size in unused if k not in used}

    def _work_s(self, number: int) -> float:
        """GPU seconds of a job alone on its fastest type; 0 if it fits on none."""
        job = self.jobs[number]
        seconds = self.left[number] * min(job.solo) * job.gpus
        return seconds if seconds < np.inf else 0.0

    def _in_order(self) -> list[int]:
        """The queue, with its last job first if that is critical."""
        if self.rule.critical_ratio == np.inf or not self.queue:
            return self.queue
        last = self.queue[-1]
        work_s = self._queued_s + sum(max(due_s - self.now_s, 0.0) for due_s in self._due_s)
        needed_s = self._work_s(last) / self.jobs[last].gpus
        if needed_s <= self.rule.critical_ratio * work_s / max(self._usable, 1):
            return self.queue
        return [last, *self.queue[:-1]]

    def _next_s(self) -> list[float]:
        """[T] seconds until the first busy GPU of each type is empty, if its jobs run one after another."""
        next_s = [np.inf] * len(self._empty)
        for kind, due_s, members in zip(self._kinds, self._due_s, self.tenants, strict=True):
            if members and due_s < self.now_s + next_s[kind]:
                next_s[kind] = max(due_s - self.now_s, 0.0)
        return next_s

    def _leave(self, started: set[int]) -> None:
        if started:
            self.queue = [n for n in self.queue if n not in started]
            self._queued_s -= sum(map(self._work_s, started))

    def _start_alone(self) -> set[int]:
        """Start waiting jobs, in order, on empty GPUs of their fastest type; returns the GPUs."""
        filled: set[int] = set()
        started: set[int] = set()
        next_s = self._next_s() if self.rule.patient and len(self._empty) > 1 else []
        for n in self._in_order():
            if not any(self._empty):
                break
            job = self.jobs[n]
            kinds = (k for k, e in enumerate(self._empty) if len(e) >= job.gpus and job.solo[k] < np.inf)
            kind = min(kinds, key=job.solo.__getitem__, default=-1)
            if kind < 0:
                continue
            if job.gpus == 1 and any(
                wait_s < self.left[n] * (job.solo[kind] - solo)
                for wait_s, solo in zip(next_s, job.solo, strict=False)
            ):
                continue
            gpus = sorted(self._empty[kind])[: job.gpus]
            self._held[n] = gpus
            for gpu in gpus:
                self._empty[kind].discard(gpu)
                self.tenants[gpu].append(n)
            if next_s:
                next_s[kind] = min(next_s[kind], self.left[n] * job.solo[kind])
            filled.update(gpus)
            started.add(n)
        self._leave(started)
        return filled

    def _start_beside(self, gpus: Iterable[int]) -> None:
        """Start waiting jobs, in order, beside the only tenant of one of `gpus`."""
        room = [g for g in gpus if len(self.tenants[g]) == 1 and self.jobs[self.tenants[g][0]].shares]
        started: set[int] = set()
        for n in self._in_order():
            if not room:
                break
            job = self.jobs[n]
            for gpu in room if job.shares else ():
                if self._steps.pair(self._kinds[gpu], self.jobs[self.tenants[gpu][0]].workload, job.workload)[
                    2
                ]:
                    self._progress(gpu)
                    self.tenants[gpu].append(n)
                    self._held[n] = [gpu]
                    self._go_on(gpu)
                    room.remove(gpu)
                    started.add(n)
                    break
        self._leave(started)
