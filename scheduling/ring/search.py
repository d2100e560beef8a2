"""Cheaper and better than SJF-BCO: a few list rules, and local search over the list."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from profiling.errors import InfeasibleError
from scheduling.ring.candidates import Candidates
from scheduling.ring.dispatch import any_that_fits
from scheduling.ring.engine import Execution, RingSchedule
from scheduling.ring.model import FormulaError, RingCluster, RingJob, ring_timing
from scheduling.ring.pick import Pick, estimate_s, fa_ffp, fewest_servers, whole_or_wait

# Sort key of waiting jobs; the first is tried first at each exit.
PRIORITIES: dict[str, Callable[[RingCluster, RingJob], tuple[float, ...]]] = {
    "longest": lambda cluster, job: (-estimate_s(cluster, job),),
    "largest-work": lambda cluster, job: (-job.gpus * estimate_s(cluster, job),),
    "widest": lambda cluster, job: (-job.gpus, -estimate_s(cluster, job)),
    "shortest": lambda cluster, job: (estimate_s(cluster, job),),
    "least-work": lambda cluster, job: (job.gpus * estimate_s(cluster, job),),
    "narrowest": lambda cluster, job: (job.gpus, estimate_s(cluster, job)),
}
PICKS: dict[str, Pick] = {"pack": fa_ffp, "whole-or-wait": whole_or_wait}
# How far above its root in k a lower bound evaluates f(alpha, k) at least.
_ABOVE_ROOT = 1e-9


def by_priority(
    cluster: RingCluster,
    jobs: Sequence[RingJob],
    execution: Execution = Execution(),
    *,
    priority: str = "longest",
    pick: str = "whole-or-wait",
) -> RingSchedule:
    """List scheduling: at every exit, start each waiting job that fits, by priority, packed.

    Raises:
        InfeasibleError: a gang is larger than the cluster.
    """
    order = sorted(jobs, key=lambda job: PRIORITIES[priority](cluster, job))
    schedule = any_that_fits(cluster, order, PICKS[pick], execution)
    if schedule is None:
        raise InfeasibleError("the jobs do not fit", expected="a cluster that holds every gang")
    return schedule


def best_list(
    cluster: RingCluster, jobs: Sequence[RingJob], execution: Execution = Execution()
) -> RingSchedule:
    """The shortest schedule over all priorities and picks; those outside equation 7 are left out, with a warning.

    Raises:
        InfeasibleError: none of them ends: a gang is larger than the cluster, or an iteration longer than a
            slot.
        FormulaError: the literal equation 7 has no bandwidth for a job in any of them.
    """
    candidates = Candidates()
    schedules = [
        schedule
        for priority in PRIORITIES
        for pick in PICKS
        if (
            schedule := candidates.schedule(
                partial(by_priority, cluster, jobs, execution, priority=priority, pick=pick)
            )
        )
    ]
    if not schedules:
        raise candidates.failures[0]
    candidates.warn()
    return min(schedules, key=lambda schedule: schedule.makespan_s)


def local_search(
    cluster: RingCluster,
    jobs: Sequence[RingJob],
    execution: Execution = Execution(),
    *,
    trials: int = 200,
    seed: int = 0,
) -> RingSchedule:
    """From the best list, move a late-ending job towards the front or swap two jobs; keep improvements.

    Makespan comes first, mean completion second, so that the search also moves along plateaus. Never worse
    than `best_list`.
    """
    source = random.Random(seed)
    best = best_list(cluster, jobs, execution)
    by_name = {job.name: job for job in jobs}
    order = [by_name[assignment.job] for assignment in best.assignments]
    score = (best.makespan_s, best.mean_completion_s) if jobs else (0.0, 0.0)
    for _ in range(trials if len(jobs) > 1 else 0):
        trial = list(order)
        if source.random() < 0.5:
            late = max(
                source.sample(best.assignments, min(5, len(best.assignments))),
                key=lambda assignment: assignment.end_s,
            )
            trial.remove(by_name[late.job])
            trial.insert(source.randrange(len(trial)), by_name[late.job])
        else:
            a, b = source.sample(range(len(trial)), 2)
            trial[a], trial[b] = trial[b], trial[a]
        pick = source.choice((fa_ffp, whole_or_wait))
        try:
            schedule = any_that_fits(cluster, trial, pick, execution)
        except (InfeasibleError, FormulaError):  # a job that shares its links makes no progress in a slot
            continue
        if schedule is None:
            continue
        trial_score = (schedule.makespan_s, schedule.mean_completion_s)
        if trial_score < score:
            best, order, score = schedule, trial, trial_score
    return best


def lower_bound_s(cluster: RingCluster, jobs: Sequence[RingJob], execution: Execution = Execution()) -> float:
    """Lower bound on any schedule: the longest job alone, and all work over all GPUs, both without rivals."""
    if not jobs:
        return 0.0
    times = {job.name: _fastest_s(cluster, job, execution) for job in jobs}
    work = sum(times[job.name] * job.gpus for job in jobs)
    return max(work / sum(cluster.servers), *times.values())


def _fastest_s(cluster: RingCluster, job: RingJob, execution: Execution) -> float:
    """Execution time on one server, or alone over the fewest servers: the lower of those that are
    possible."""
    rails, fewest = execution.fabric.rails, fewest_servers(cluster, job)
    spans = [1] if fewest == 1 else []
    if job.gpus > 1 and len(cluster.servers) > 1:
        spans.append(max(2, fewest))
    least = 1 / rails
    if not execution.clamp:
        # With less contention f may be negative, which no schedule has; here a job has almost any bandwidth.
        root = cluster.alpha / (1 + cluster.alpha)
        least = max(least, (root + _ABOVE_ROOT) / cluster.xi1)
    return job.iterations * min(
        ring_timing(
            cluster, job, dict.fromkeys(range(span), 1), least, rings=rails, clamp=execution.clamp
        ).iteration_time_s
        for span in spans
    )
