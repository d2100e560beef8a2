"""Simulates partitioned cards: jobs start, are saved, move to other slices and resume, each at a cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np

from predictor.types import SetPredictor
from profiling.errors import InfeasibleError, InputError
from profiling.workload import ColocationSet, Workload
from scheduling.core.job import JobState, TraceJob, check_ids
from scheduling.simulator.result import Interval, SimulationResult
from scheduling.slices.cluster import NEVER_S, Card, Reshape, SlicePolicy, SliceSnapshot, Slot, without_jobs
from scheduling.slices.costs import SliceCosts

# A policy queried this often at one moment does not terminate.
_MOST_ACTIONS = 10_000


@dataclass(slots=True)
class SliceResult:
    """Results of a simulation.

    Attributes:
        jobs: final states, by number.
        seen_s: when the controller first saw each job.
        busy_s_on: by device, seconds in which a card had a job, summed over cards.
        reshapes: number of repartitionings.
        moves: number of times a job was saved and restarted.
        intervals: which job was on which card, and when.
        queue: (time, jobs waiting) after each change.
        busy: (time, cards in use) after each change.
    """

    policy: str
    jobs: list[JobState]
    seen_s: list[float]
    solo_work_s: float
    gpus: int
    busy_s_on: dict[str, float] = field(default_factory=dict)
    reshapes: int = 0
    moves: int = 0
    decisions_s: list[float] = field(default_factory=list)
    intervals: list[Interval] = field(default_factory=list)
    queue: list[tuple[float, int]] = field(default_factory=list)
    busy: list[tuple[float, int]] = field(default_factory=list)

    def completion_s(self, from_arrival: bool = False) -> np.ndarray:
        """[J] seconds from when the controller first saw each job (or from its arrival) to its end."""
        start = [j.job.submit_s for j in self.jobs] if from_arrival else self.seen_s
        return np.array([float(j.finished_s or math.nan) for j in self.jobs]) - np.array(start)

    def summary(self) -> SimulationResult:
        """Convert to the result of a general simulation."""
        return SimulationResult(
            self.policy,
            self.jobs,
            sum(self.busy_s_on.values()),
            self.gpus,
            self.decisions_s,
            self.intervals,
            self.queue,
            self.busy,
            busy_s_on=self.busy_s_on,
        )

    def to_json(self) -> dict[str, Any]:
        """Convert to the JSON object of `cotenant simulate --json`, with additional fields on slices."""
        body = self.summary().to_json()
        span = body["makespan_s"]
        return body | {
            "throughput_of_one_gpu": self.solo_work_s / span if span else 0.0,
            "reconfigurations": self.reshapes,
        }


def simulate_slices(
    jobs: Sequence[TraceJob],
    cards: Sequence[str],
    policy: SlicePolicy,
    truth: SetPredictor,
    belief: SetPredictor,
    costs: SliceCosts = SliceCosts(),
    on_progress: Callable[[int, int], None] | None = None,
) -> SliceResult:
    """Run `jobs` on `cards` (device names) under `policy` until every job is done.

    Args:
        truth: actual speeds of jobs.
        belief: predictor used by the policy.
        on_progress: called with the numbers of finished and of all jobs.

    Raises:
        InputError: no jobs or no cards, two jobs with one id, a multi-GPU job, or a card that the policy cannot take;
            before anything runs.
        InfeasibleError: the policy leaves jobs waiting forever, or puts one where it does not fit.
    """
    if not jobs or not cards:
        raise InputError(
            "nothing to simulate", expected="jobs and cards", got=f"{len(jobs)} jobs, {len(cards)} cards"
        )
    check_ids(jobs)
    gangs = [job for job in jobs if job.gpus > 1]
    if gangs:
        raise InputError(
            f"policy {policy.name} places every job on one card",
            expected="jobs of one GPU",
            got=f"{len(gangs)} of {len(jobs)} jobs with more, such as {gangs[0].id} with {gangs[0].gpus}",
            hint="Leave them out of the trace, or use a policy of whole GPUs such as isacpp-gangs",
        )
    return _Simulation(jobs, cards, policy, truth, belief, costs, on_progress).run()


class _Simulation:
    def __init__(
        self,
        jobs: Sequence[TraceJob],
        cards: Sequence[str],
        policy: SlicePolicy,
        truth: SetPredictor,
        belief: SetPredictor,
        costs: SliceCosts,
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        self.jobs = [
            JobState(job, n, job.iterations, frozen_prefix=job.workload.frozen_prefix)
            for n, job in enumerate(sorted(jobs, key=lambda job: job.submit_s))
        ]
        self.by_number = dict(enumerate(self.jobs))
        self.policy, self.truth, self.belief, self.costs = policy, truth, belief, costs
        self.cards = [Card(n, device, policy.initial(device)) for n, device in enumerate(cards)]
        self.queue: list[int] = []
        self.running: set[int] = set()
        self.card_of: dict[int, int] = {}
        self.now_s, self.arrived, self.done = 0.0, 0, 0
        self.woke_before_s = NEVER_S
        self.reports_s: list[float] = []
        self.on_progress = on_progress
        self.busy_since: dict[int, float] = {}
        # When each job came on its card, by card and job; a job that is being saved or moved is still on it.
        self.on_card_since: list[dict[int, float]] = [{} for _ in cards]
        self.known: dict[tuple[str, str, tuple[Workload, ...]], tuple[float, ...] | None] = {}
        alone = [self._steps(Slot(cards[0]), (j.job.workload,)) for j in self.jobs]
        work = [j.job.iterations * a[0] for j, a in zip(self.jobs, alone, strict=True) if a is not None]
        self.result = SliceResult(
            policy.name, self.jobs, [0.0] * len(self.jobs), float(sum(work)), len(cards)
        )

    def run(self) -> SliceResult:
        round_s = self.policy.round_s
        while self.done < len(self.jobs):
            self._arrive()
            wake = self._act()
            following = math.inf if self.arrived >= len(self.jobs) else self.jobs[self.arrived].job.submit_s
            ends = min((self._end_s(self.jobs[n]) for n in self.running), default=math.inf)
            if round_s is not None:
                if math.isinf(following) and math.isinf(ends) and self.queue and self._settled(round_s):
                    self._stuck()
                target = self._next_round(round_s, following)
            else:
                self.reports_s = [t for t in self.reports_s if t > self.now_s]
                target = min([following, ends, wake, *self.reports_s])
                if math.isinf(target):
                    self._stuck()
            self._advance(target)
        return self.result

    def _next_round(self, round_s: float, following: float) -> float:
        """When the controller wakes up next; while the cluster is idle, it need not before the next arrival."""
        rounds = 1
        if math.isfinite(following) and not self.running and not self.queue and not self._profiling():
            rounds = max(1, math.ceil((following - 1e-9 - self.now_s) / round_s))
        if rounds > 1:
            self.woke_before_s = self.now_s + (rounds - 1) * round_s
        return self.now_s + rounds * round_s

    def _stuck(self) -> None:
        first = self.jobs[self.queue[0]].job
        raise InfeasibleError(
            f"{self.policy.name} leaves {len(self.queue)} jobs waiting with nothing running, "
            f"the first is {first.id} ({first.workload})",
            hint="a job may need more memory than any slice has",
        )

    def _settled(self, round_s: float) -> bool:
        """Whether the controller has known for a whole round that nothing runs any more."""
        last_s = max(max(card.left_s, card.checkpoint_s) for card in self.cards)
        return not self._profiling() and self.now_s - last_s >= round_s + self.costs.report_s

    def _profiling(self) -> bool:
        return any(card.profile_until_s is not None for card in self.cards)

    def _arrive(self) -> None:
        while self.arrived < len(self.jobs) and self.jobs[self.arrived].job.submit_s <= self.now_s + 1e-9:
            job = self.jobs[self.arrived]
            job.updated_s = self.result.seen_s[job.number] = self.now_s
            job.waiting_since_s = job.job.submit_s
            self.queue.append(job.number)
            self.arrived += 1
            self._note_queue()

    def _act(self) -> float:
        """Query the policy until it has no more actions; returns the latest time for the next query."""
        woke_s = self.now_s
        for _ in range(_MOST_ACTIONS):
            snapshot = SliceSnapshot(
                self.now_s,
                tuple(self.cards),
                tuple(self.queue),
                self.by_number,
                woke_s,
                self.woke_before_s,
                self.costs.report_s,
            )
            start = perf_counter()
            action = self.policy.decide(snapshot, self.belief)
            self.result.decisions_s.append(perf_counter() - start)
            if action is None:
                self.woke_before_s = woke_s
                ends = (c.profile_until_s for c in self.cards if c.profile_until_s is not None)
                return min((t for t in ends if t > self.now_s), default=math.inf)
            self._reshape(action)
        raise InfeasibleError(f"{self.policy.name} has not finished at {self.now_s:.0f} s")

    def _reshape(self, action: Reshape) -> None:
        card = self.cards[action.card]
        slot_of = {job: slot for slot in action.slots for job in slot.jobs}
        stay = set()
        if not action.drain:
            stay = {
                job
                for slot in card.slots
                for job in slot.jobs
                if job in slot_of and slot_of[job].place == slot.place
            }
        saved, ready_s = [job for job in card.jobs if job not in stay], self.now_s
        recut = without_jobs(action.slots) != without_jobs(card.slots)
        for job in saved:
            self._sync(self.jobs[job])
            self.jobs[job].rate = 0.0
            self.jobs[job].resume_s = math.inf
            self.running.discard(job)
        if saved:
            ready_s += self.costs.checkpoint_s
        if recut:
            ready_s += self.costs.reconfigure_s
            self.result.reshapes += 1
        checkpoint_s = ready_s if saved else card.checkpoint_s
        # Until the new jobs start, only the jobs that stay are on the card, and they keep running.
        self.cards[action.card] = replace(
            card,
            slots=tuple(
                replace(slot, jobs=tuple(j for j in slot.jobs if j in stay)) for slot in action.slots
            ),
            left=0,
        )
        for slot in self.cards[action.card].slots:
            self._pace(slot)
        for job in slot_of:
            if job not in stay:
                self._start(self.jobs[job], action.card, ready_s, job in saved)
        if self.policy.blocking:
            self._account(action.card)
            self._advance(ready_s)
        done = {job for job in slot_of if self.jobs[job].finished_s is not None}
        self.cards[action.card] = replace(
            self.cards[action.card],
            slots=tuple(
                replace(slot, jobs=tuple(j for j in slot.jobs if j not in done)) for slot in action.slots
            ),
            checkpoint_s=checkpoint_s,
            profile_until_s=ready_s + action.profile_s if action.profile_s else None,
        )
        for job in saved:
            if job not in slot_of:
                self._wait(self.jobs[job])
        for slot in self.cards[action.card].slots:
            self._pace(slot)
        self._account(action.card)

    def _account(self, card: int) -> None:
        """Record when a card becomes busy or idle."""
        if self.on_card_since[card]:
            self.busy_since.setdefault(card, self.now_s)
        elif card in self.busy_since:
            device, busy_s = self.cards[card].device, self.now_s - self.busy_since.pop(card)
            self.result.busy_s_on[device] = self.result.busy_s_on.get(device, 0.0) + busy_s
        self.result.busy.append((self.now_s, len(self.busy_since)))

    def _note_queue(self) -> None:
        self.result.queue.append((self.now_s, len(self.queue)))

    def _off_card(self, number: int) -> None:
        card, job = self.card_of[number], self.jobs[number]
        since = self.on_card_since[card].pop(number)
        self.result.intervals.append(Interval(number, card, since, self.now_s))
        device, held_s = self.cards[card].device, self.now_s - since
        job.attained_gpu_s += held_s
        job.served_s[device] = job.served_s.get(device, 0.0) + held_s

    def _start(self, job: JobState, card: int, ready_s: float, was_here: bool) -> None:
        first = job.started_s is None
        if first:
            job.started_s = self.now_s
        else:
            job.restarts += 1
            self.result.moves += 1
        if not was_here:
            self.queue.remove(job.number)
            self._note_queue()
            self.on_card_since[card][job.number] = self.now_s
            job.waited_s += self.now_s - job.waiting_since_s  # repartitioning is for it, so it holds the card
        costs = self.costs
        again = costs.resume_of.get(job.job.workload.model, costs.resume_s)
        job.resume_s = ready_s + (costs.first_start_s if first else again)
        job.updated_s = ready_s
        job.gpus = (card,)
        self.card_of[job.number] = card
        self.running.add(job.number)

    def _wait(self, job: JobState) -> None:
        self._off_card(job.number)
        job.gpus, job.rate, job.waiting_since_s, job.resume_s = (), 0.0, self.now_s, 0.0
        self.queue.insert(0, job.number)
        self._note_queue()

    def _pace(self, slot: Slot) -> None:
        """Update the pace of all jobs in a slot."""
        if not slot.jobs:
            return
        members = tuple(self._limited(self.jobs[j].job.workload, slot) for j in slot.jobs)
        steps = self._steps(slot, members)
        if steps is None:
            names = ", ".join(str(w) for w in members)
            raise InfeasibleError(f"{self.policy.name} puts {names} on {slot.device}, where they do not fit")
        for number, step in zip(slot.jobs, steps, strict=True):
            self._sync(self.jobs[number])
            self.jobs[number].rate = 1.0 / step

    @staticmethod
    def _limited(workload: Workload, slot: Slot) -> Workload:
        return replace(workload, sm_share_ratio=min(workload.sm_share_ratio, slot.sm_share_ratio))

    def _steps(self, slot: Slot, members: tuple[Workload, ...]) -> tuple[float, ...] | None:
        sharing = slot.sharing if len(members) > 1 or slot.sm_share_ratio < 1 else "time-slice"
        key = slot.device, sharing, members
        if key not in self.known:
            arrays = self.truth.predict_arrays([ColocationSet(slot.device, members, sharing)])
            self.known[key] = tuple(arrays.step_time_s[0].tolist()) if arrays.fits[0] else None
        return self.known[key]

    def _sync(self, job: JobState) -> None:
        since = max(job.updated_s, min(job.resume_s, self.now_s))
        job.left = max(job.left - job.rate * (self.now_s - since), 0.0)
        job.updated_s = self.now_s

    def _end_s(self, job: JobState) -> float:
        return max(job.updated_s, job.resume_s) + job.left / job.rate if job.rate > 0 else math.inf

    def _advance(self, target: float) -> None:
        """Advance time to `target`; finished jobs leave their slots."""
        while True:
            ends = {self._end_s(self.jobs[n]): n for n in sorted(self.running, reverse=True)}
            first = min(ends, default=math.inf)
            if first > target + 1e-9:
                break
            number = ends[first]
            self.now_s = max(first, self.now_s)
            self._finish(self.jobs[number])
            if self.policy.round_s is None:
                target = self.now_s  # those that end at the same moment leave before the policy is asked
        self.now_s = max(self.now_s, target)

    def _finish(self, job: JobState) -> None:
        self._sync(job)
        job.left, job.rate, job.finished_s = 0.0, 0.0, self.now_s
        self.running.discard(job.number)
        if self.policy.round_s is None:
            self.reports_s.append(self.now_s + self.costs.report_s)
        self.done += 1
        if self.on_progress is not None:
            self.on_progress(self.done, len(self.jobs))
        self._off_card(job.number)
        card = self.cards[self.card_of.pop(job.number)]
        slots = tuple(
            replace(slot, jobs=tuple(j for j in slot.jobs if j != job.number)) for slot in card.slots
        )
        self.cards[card.number] = replace(card, slots=slots, left=card.left + 1, left_s=self.now_s)
        for slot, before in zip(slots, card.slots, strict=True):
            if slot.jobs != before.jobs:
                self._pace(slot)
        self._account(card.number)
