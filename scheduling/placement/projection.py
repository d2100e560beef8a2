"""How a whole queue goes on after a decision, by a plain rule: what keeps a clever decision from ending later than a plain one.

Rollout (Bertsekas, Tsitsiklis and Wu, "Rollout algorithms for combinatorial optimization", J. Heuristics 3, 1997): of a
decision and what a base policy decides, both followed by the base policy, the first is taken only where it does not end
later. By induction over the decisions, with nobody arriving and lengths as believed, the schedule then ends no later than
the base policy's.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduling.core.job import Allocation, JobState
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import current_workload
from scheduling.placement.gangs import solo_step_s

_EPS = 1e-9


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a projection ends with.

    Attributes:
        end_s: seconds from now until the last job is done.
        tail_s: mean completion time, since submission, of the hundredth of the jobs (two at least) that need longest.
        sum_s: sum of the seconds from now in which the jobs are done.
        started: GPUs by job number of what the rule starts at once.
    """

    end_s: float
    tail_s: float
    sum_s: float
    started: dict[int, tuple[int, ...]]


class _Job:
    __slots__ = ("age_s", "gang", "key", "left", "shares", "solo", "workload")

    def __init__(
        self, workload: int, left: float, age_s: float, gang: int, shares: bool, solo: Sequence[float], key: float
    ) -> None:
        self.workload, self.left, self.age_s, self.gang, self.shares = workload, left, age_s, gang, shares
        self.solo, self.key = solo, key


class Projection:
    """Jobs and GPUs of a snapshot, to be followed under shortest job first with or without blind packing of pairs.

    Gangs hold whole GPUs of one type, wherever those are. A restart that is under way counts as work.
    """

    def __init__(self, snapshot: SchedulingSnapshot, belief: SetCache, max_slowdown: float, restart_s: float) -> None:
        self._snapshot, self._belief, self._restart_s = snapshot, belief, restart_s
        self._max_slowdown = max_slowdown
        self._kind = snapshot.type_of.tolist()
        self._devices = [
            belief.device_id(device, snapshot.sharing[int(np.argmax(snapshot.type_of == kind))])
            for kind, device in enumerate(snapshot.types)
        ]
        self._pairs: dict[tuple[int, int, int], tuple[float, float, bool]] = snapshot.derived(
            ("pairs", belief, belief.revision, max_slowdown), dict
        )
        self.jobs = {job.number: self._job(job) for job in snapshot.active()}

    def _job(self, job: JobState) -> _Job:
        snapshot, belief = self._snapshot, self._belief
        solo = solo_step_s(snapshot, belief, job.job.workload)
        left, gang = snapshot.left(job), len(job.gpus) or job.job.gpus
        if job.gpus and job.resume_s > snapshot.now_s:
            left += (job.resume_s - snapshot.now_s) / solo[int(snapshot.type_of[job.gpus[0]])]
        number = belief.workload_id(current_workload(job))
        shares = gang == 1 and not job.exclusive
        age_s = snapshot.now_s - job.job.submit_s
        return _Job(number, left, age_s, gang, shares, solo, left * min(solo) / job.job.priority)

    def _pair(self, kind: int, first: int, second: int) -> tuple[float, float, bool]:
        """Seconds per step of each, and whether they may share."""
        key = (kind, first, second)
        known = self._pairs.get(key)
        if known is None:
            belief, device = self._belief, self._devices[kind]
            low, high = sorted((first, second))
            with belief.lock:
                row = int(belief.rows(np.array([device]), np.array([[low, high]]), np.ones((1, 2), bool))[0])
                steps = belief.step_time_s[row, :2].tolist()
                may = bool(belief.fits[row]) and float(belief.slowdown[row, :2].max()) <= self._max_slowdown
            if (low, high) != (first, second):
                steps.reverse()
            known = self._pairs[key] = (steps[0], steps[1], may)
            self._pairs[kind, second, first] = (steps[1], steps[0], may)
        return known

    def follow(self, decisions: Sequence[Allocation], pack: bool) -> Outcome:
        """Carry `decisions` out, then go on shortest job first; with `pack` beside whoever has room."""
        snapshot, jobs = self._snapshot, self.jobs
        left = {number: job.left for number, job in jobs.items()}
        gpus: list[list[int]] = [[t.number for t in tenants] for tenants in snapshot.tenants]
        waiting = set(snapshot.waiting)
        for decision in decisions:
            number = decision.job.number
            for gpu in decision.job.gpus:
                gpus[gpu].remove(number)
        for decision in decisions:
            number, job = decision.job.number, jobs[decision.job.number]
            for gpu in decision.gpus:
                gpus[gpu].append(number)
            started = decision.job.started_s is not None
            if started and decision.gpus:
                left[number] += self._restart_s / job.solo[self._kind[decision.gpus[0]]]
            elif started:
                left[number] += self._restart_s / min(job.solo)
            if decision.gpus:
                waiting.discard(number)
            else:
                waiting.add(number)
        queue = sorted(waiting, key=lambda n: (jobs[n].key, n))
        return self._run(gpus, left, queue, pack)

    def _run(self, gpus: list[list[int]], left: dict[int, float], queue: list[int], pack: bool) -> Outcome:
        jobs, kinds = self.jobs, self._kind
        held: dict[int, list[int]] = {}
        for gpu, members in enumerate(gpus):
            for number in members:
                held.setdefault(number, []).append(gpu)
        since, version, now = [0.0] * len(gpus), [0] * len(gpus), 0.0
        steps: list[list[float]] = [[] for _ in gpus]
        events: list[tuple[float, int, int]] = []
        finish: dict[int, float] = {}
        empty: list[set[int]] = [set() for _ in self._devices]
        for gpu, members in enumerate(gpus):
            if not members:
                empty[kinds[gpu]].add(gpu)

        def pace(gpu: int) -> None:
            """The tenants of `gpu` go on from now."""
            members, kind = gpus[gpu], kinds[gpu]
            if len(members) == 2 and len(held[members[0]]) == 1:
                first, second, _ = self._pair(kind, jobs[members[0]].workload, jobs[members[1]].workload)
                steps[gpu] = [first, second]
            else:
                steps[gpu] = [jobs[n].solo[kind] for n in members]
            since[gpu] = now
            version[gpu] += 1
            if members and held[members[0]][0] == gpu:
                soonest = min(left[n] * s for n, s in zip(members, steps[gpu], strict=True))
                heapq.heappush(events, (now + soonest, gpu, version[gpu]))

        def progress(gpu: int) -> None:
            for n, s in zip(gpus[gpu], steps[gpu], strict=True):
                left[n] -= (now - since[gpu]) / s
            since[gpu] = now

        def place_alone() -> set[int]:
            """Waiting jobs on empty GPUs, in order; the GPUs."""
            filled: set[int] = set()
            rest: list[int] = []
            for position, n in enumerate(queue):
                if not any(empty):
                    rest += queue[position:]
                    break
                job = jobs[n]
                best = min(
                    (k for k in range(len(empty)) if len(empty[k]) >= job.gang and job.solo[k] < float("inf")),
                    key=job.solo.__getitem__,
                    default=-1,
                )
                if best < 0:
                    rest.append(n)
                    continue
                chosen = sorted(empty[best])[: job.gang]
                held[n] = chosen
                for gpu in chosen:
                    empty[best].discard(gpu)
                    gpus[gpu].append(n)
                filled.update(chosen)
            queue[:] = rest
            return filled

        def share(open_gpus: list[int]) -> None:
            """Waiting jobs beside the tenants of `open_gpus`, in order."""
            open_gpus = [g for g in open_gpus if len(gpus[g]) == 1 and jobs[gpus[g][0]].shares]
            rest: list[int] = []
            for position, n in enumerate(queue):
                if not open_gpus:
                    rest += queue[position:]
                    break
                job = jobs[n]
                for gpu in open_gpus if job.shares else ():
                    if self._pair(kinds[gpu], jobs[gpus[gpu][0]].workload, job.workload)[2]:
                        progress(gpu)
                        gpus[gpu].append(n)
                        held[n] = [gpu]
                        open_gpus.remove(gpu)
                        pace(gpu)
                        break
                else:
                    rest.append(n)
            queue[:] = rest

        for gpu in range(len(gpus)):
            if gpus[gpu]:
                pace(gpu)
        before = set(held)
        for gpu in sorted(place_alone()):
            pace(gpu)
        if pack and queue:
            share(list(range(len(gpus))))
        started = {n: tuple(own) for n, own in held.items() if n not in before}
        while events:
            when, gpu, told = heapq.heappop(events)
            if told != version[gpu]:
                continue
            now = when
            progress(gpu)
            members = gpus[gpu]
            ends = min(left[n] * s for n, s in zip(members, steps[gpu], strict=True)) + _EPS
            gone = [n for n, s in zip(members, steps[gpu], strict=True) if left[n] * s <= ends]
            touched = [gpu]
            for n in gone:
                finish[n] = now
                for own in held.pop(n):
                    gpus[own].remove(n)
                    if not gpus[own]:
                        empty[kinds[own]].add(own)
                    if own != gpu:
                        touched.append(own)
            if queue:
                touched += [g for g in place_alone() if g not in touched]
            for own in touched:
                pace(own)
            if queue and pack:
                share(touched)
        never = [jobs[n].left * min(jobs[n].solo) for n in queue]  # what the cluster is too small for
        times = [*finish.values(), *never]
        ages = sorted((t + jobs[n].age_s for n, t in finish.items()), reverse=True)
        worst = ages[: max(2, len(ages) // 100)]
        return Outcome(max(times, default=0.0), sum(worst) / max(len(worst), 1), sum(times), started)
