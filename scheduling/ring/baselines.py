"""Baselines for SJF-BCO: list scheduling, first fit, random.

Each has two readings. Queued (the default, as the paper words them): GPUs are queues, and a job is given GPUs
by the work these have had, busy or not. Idle: the job at the head of the queue waits for idle GPUs and
chooses among those.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial

from profiling.errors import InfeasibleError
from scheduling.ring.candidates import Candidates
from scheduling.ring.dispatch import in_line, queued
from scheduling.ring.engine import Execution, Gpu, RingRun, RingSchedule
from scheduling.ring.model import RingCluster, RingJob
from scheduling.ring.pick import Pick, estimate_s

_TOLERANCE = 0.01


def list_scheduling(
    cluster: RingCluster,
    jobs: Sequence[RingJob],
    execution: Execution = Execution(),
    *,
    idle: bool = False,
) -> RingSchedule:
    """Jobs in the order given, each on the GPUs with the least work so far."""

    def pick(job: RingJob, run: RingRun) -> tuple[Gpu, ...] | None:
        open_gpus = sorted(_open(run, idle), key=lambda gpu: (run.load[gpu[0]][gpu[1]], gpu))
        return tuple(open_gpus[: job.gpus]) if len(open_gpus) >= job.gpus else None

    return _placed(cluster, jobs, pick, execution, idle)


def first_fit(
    cluster: RingCluster,
    jobs: Sequence[RingJob],
    execution: Execution = Execution(),
    *,
    idle: bool = False,
) -> RingSchedule:
    """Jobs in the order given, each on the first GPUs from the first server on.

    When queued, no GPU is given more than theta of work, and theta is bisected to 1 % for the lowest
    value that places every job (without a bound, all jobs would queue on the first server). A theta under which a job
    never ends or leaves the range of the literal equation 7 is left out.

    Raises:
        InfeasibleError: no theta gives a schedule that ends.
        FormulaError: the literal equation 7 has no bandwidth for a job under any.
    """
    if idle:
        return _placed(cluster, jobs, _first(float("inf"), idle=True), execution, idle)
    estimates = {job.name: estimate_s(cluster, job) for job in jobs}
    low, high = 0.0, sum(estimates.values())
    candidates, schedules, theta_s = Candidates(), list[RingSchedule](), high
    while True:
        failed = len(candidates.failures)
        schedule = candidates.schedule(partial(queued, cluster, jobs, _first(theta_s, idle=False), execution))
        if schedule is not None:
            schedules.append(schedule)
        if schedule is None and len(candidates.failures) == failed:  # not every job got GPUs
            low = theta_s
        else:
            high = theta_s
        if high - low <= _TOLERANCE * high:
            break
        theta_s = (low + high) / 2
    if not schedules:
        raise candidates.failures[0] if candidates.failures else _no_room()
    candidates.warn()
    return min(schedules, key=lambda schedule: schedule.makespan_s)


def random_fit(
    cluster: RingCluster,
    jobs: Sequence[RingJob],
    execution: Execution = Execution(),
    *,
    idle: bool = False,
    seed: int = 0,
) -> RingSchedule:
    """Jobs in the order given, each on random GPUs."""
    source = random.Random(seed)

    def pick(job: RingJob, run: RingRun) -> tuple[Gpu, ...] | None:
        open_gpus = list(_open(run, idle))
        return tuple(source.sample(open_gpus, job.gpus)) if len(open_gpus) >= job.gpus else None

    return _placed(cluster, jobs, pick, execution, idle)


def _first(theta_s: float, *, idle: bool) -> Pick:
    def pick(job: RingJob, run: RingRun) -> tuple[Gpu, ...] | None:
        bound_s = theta_s - estimate_s(run.cluster, job)
        chosen: list[Gpu] = []
        for server, gpu in _open(run, idle):
            if run.load[server][gpu] <= bound_s * (1 + 1e-9):
                chosen.append((server, gpu))
                if len(chosen) == job.gpus:
                    return tuple(chosen)
        return None

    return pick


def _open(run: RingRun, idle: bool) -> Iterator[Gpu]:
    for server, count in enumerate(run.cluster.servers):
        for gpu in sorted(run.idle[server]) if idle else range(count):
            yield server, gpu


def _placed(
    cluster: RingCluster, jobs: Sequence[RingJob], pick: Pick, execution: Execution, idle: bool
) -> RingSchedule:
    schedule = (in_line if idle else queued)(cluster, jobs, pick, execution)
    if schedule is None:
        raise _no_room()
    return schedule


def _no_room() -> InfeasibleError:
    return InfeasibleError("the jobs do not fit", expected="a cluster that holds every gang")
