"""Chooses the first of several decisions about a queue that is no worse than following a plain rule.

The plain rule, shortest job first, runs in a virtual cluster beside the real one from the first decision on. A
decision is safe if, followed by that rule or by it with critical jobs first, the end, the longest completion
times and their mean are no later than in the virtual cluster (a rollout with base policies: Bertsekas, Tsitsiklis
and Wu, J. Heuristics 3, 1997). What was gained so far may be spent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduling.core.job import Allocation, JobState
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gangs import usable_gpus
from scheduling.placement.plain_schedule import Outcome, PlainRule, PlainSchedule, Steps
from scheduling.placement.projection import Projection, plain_job

# With more running and waiting jobs, here or under the plain rule, a projection takes longer than a decision
# should. The same holds for more GPUs; with fewer jobs than GPUs, hardly any wait.
_MOST_JOBS = _MOST_GPUS = 512

# In the virtual cluster; and after a decision, besides those. Stopping a long job for a short one would not look
# safe if the long one then always came last, nor waiting for a fast GPU if the rule then took a slow one.
_PLAIN = (PlainRule(pack=False), PlainRule(pack=True))
_AFTER = tuple(PlainRule(pack, ratio, patient=True) for ratio in (np.inf, 1.0, 0.7) for pack in (False, True))

Proposal = Callable[[], list[Allocation]]


@dataclass(slots=True, eq=False)
class _Plain:
    """The plain rule's own cluster, alone and packed; jobs with numbers up to `seen` were submitted to it."""

    steps: Steps
    schedules: list[PlainSchedule] = field(default_factory=list)
    seen: int = -1
    active: dict[int, JobState] = field(default_factory=dict)
    done: list[float] = field(default_factory=list)

    def follow(
        self, snapshot: SchedulingSnapshot, belief: SetCache, projection: Projection
    ) -> _Reference | None:
        """What decisions are compared with, after submitting the jobs that are new; None with too many jobs."""
        if not self.schedules:
            self.done, self.active = [], {}
            self.schedules = [projection.schedule([], rule)[0] for rule in _PLAIN]
        else:
            new: dict[float, list[JobState]] = {}
            for job in snapshot.active():
                if job.number > self.seen:
                    new.setdefault(job.job.submit_s, []).append(job)
            for submit_s, jobs in sorted(new.items()):
                for schedule in self.schedules:
                    rows = [(j.number, plain_job(snapshot, belief, j), snapshot.left(j)) for j in jobs]
                    schedule.submit(rows, submit_s)
        for job in [j for j in self.active.values() if j.finished_s is not None]:
            self.done.append(float(job.finished_s or 0.0) - job.job.submit_s)
            del self.active[job.number]
        self.active.update((j.number, j) for j in snapshot.active())
        self.seen = max(self.seen, max((j.number for j in snapshot.active()), default=-1))
        if any(len(schedule.jobs) > _MOST_JOBS for schedule in self.schedules):
            self.schedules = []
            return None
        outcomes = [schedule.copy().outcome() for schedule in self.schedules]
        best = Outcome(*(min(figures) for figures in zip(*outcomes, strict=True)))
        return _Reference(best, min(schedule.first_s for schedule in self.schedules), self.done)


@dataclass(frozen=True, slots=True)
class _Reference:
    """The best figures of the plain rule.

    Attributes:
        first_s: earliest submission of its jobs.
        done: completion times of jobs that are no longer in a snapshot.
    """

    best: Outcome
    first_s: float
    done: list[float]

    def losses(self, schedule: PlainSchedule) -> tuple[float, float]:
        """Fractions by which a schedule is worse: in the mean, and for the figure where it is worst."""
        own, best = schedule.outcome(self.done), self.best
        mean = own.mean_s / max(best.mean_s, 1.0) - 1.0
        return mean, max(
            (own.end_s - best.end_s) / max(best.end_s - self.first_s, 1.0),
            own.tail_s / max(best.tail_s, 1.0) - 1.0,
            mean,
            own.p99_s / max(best.p99_s, 1.0) - 1.0,
        )


def guarded(
    snapshot: SchedulingSnapshot,
    belief: SetCache,
    proposals: Iterable[Proposal],
    tolerance: float,
    max_slowdown: float,
    restart_s: float,
) -> list[Allocation]:
    """Return the first safe proposal.

    If none is safe, the one, or the starts of one of the rules, with the smallest loss among those whose mean is
    within the tolerance, otherwise with the least mean.

    After a proposal that starts or moves a job, the policy is asked again at once, so that the jobs left waiting
    are projected to start at once by a rule; after an empty one, they wait until the next departure. A proposal
    that stops jobs is also tried without stopping them. If no job is waiting, or there are too many jobs or
    GPUs, the first proposal is returned as is.

    Args:
        snapshot: the cluster.
        belief: predictions.
        proposals: in order of preference; each is called only when it is needed. Gangs are placed as in the
            first.
        tolerance: fraction by which each figure may be worse than the plain rule's.
        max_slowdown: largest slowdown of a pair under the plain rule.
        restart_s: cost of stopping or moving a job.
    """
    propose = iter(proposals)
    first = next(propose)()
    if usable_gpus(snapshot, belief) > _MOST_GPUS:
        return first
    plain = snapshot.derived(
        ("plain rule", belief, max_slowdown), lambda: _Plain(Steps(snapshot, belief, max_slowdown))
    )
    if len(snapshot.waiting) + len(snapshot.running) > _MOST_JOBS:
        plain.schedules = []
        return first
    if not snapshot.waiting:
        return first
    projection = Projection(snapshot, belief, plain.steps, restart_s)
    reference = plain.follow(snapshot, belief, projection)
    if reference is None:
        return first

    def loss(schedule: PlainSchedule) -> tuple[float, float]:
        # The best figures may be those of two rules, so that nothing equals all; then the mean counts first.
        mean, worst = reference.losses(schedule)
        return max(mean, tolerance), worst

    # With one type, a patient rule is the same as the plain one.
    rules = _AFTER if len(snapshot.types) == 1 else (*_AFTER, *_PLAIN)
    least, chosen = (float("inf"), float("inf")), first
    for decisions in _with_milder(first, propose):
        for rule in rules:
            lost = loss(projection.schedule(decisions, rule, waits=not decisions)[0])
            if lost[1] <= tolerance:
                return decisions
            if lost < least:
                least, chosen = lost, decisions
    theirs = {gpu for a in first if a.job.job.gpus > 1 for gpu in a.gpus}
    gangs = [a for a in first if a.job.job.gpus > 1 or (a.gpus and theirs.intersection(a.job.gpus))]
    for rule in rules:
        schedule, started = projection.schedule(gangs, rule)
        lost = loss(schedule)
        if lost < least:
            starts = (Allocation(snapshot.waiting[n], gpus) for n, gpus in started.items())
            least, chosen = lost, [*gangs, *starts]
    return chosen


def _with_milder(first: list[Allocation], others: Iterable[Proposal]) -> Iterator[list[Allocation]]:
    yield first
    milder = _without_stops(first)
    if len(milder) < len(first):
        yield milder
    for propose in others:
        yield propose()


def _without_stops(decisions: Sequence[Allocation]) -> list[Allocation]:
    """The jobs that start without another job being stopped or moved for them."""
    freed = {gpu for a in decisions for gpu in a.job.gpus}
    return [a for a in decisions if not a.job.gpus and not freed & set(a.gpus)]
