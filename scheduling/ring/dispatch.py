"""Order in which waiting jobs start: strictly in line, or any that fits (list scheduling, backfilling)."""

from __future__ import annotations

from collections.abc import Sequence

from profiling.errors import InfeasibleError
from scheduling.ring.engine import Execution, Gpu, RingRun, RingSchedule
from scheduling.ring.model import RingCluster, RingJob
from scheduling.ring.pick import Pick, estimate_s


def check_gangs(cluster: RingCluster, jobs: Sequence[RingJob]) -> None:
    """Check that every gang fits the cluster.

    Raises:
        InfeasibleError: a gang is larger than the cluster.
    """
    total = sum(cluster.servers)
    for job in jobs:
        if job.gpus > total:
            raise InfeasibleError(
                f"job {job.name!r} does not fit", expected=f"at most {total} GPUs", got=job.gpus
            )


def in_line(
    cluster: RingCluster, jobs: Sequence[RingJob], pick: Pick, execution: Execution = Execution()
) -> RingSchedule | None:
    """Start jobs in the order given, each as soon as `pick` finds its GPUs; None if it never does."""
    check_gangs(cluster, jobs)
    run = RingRun(cluster, execution)
    for job in jobs:
        while (gpus := pick(job, run)) is None:
            if not run.running:
                return None
            run.leave()
        run.start(job, gpus, estimate_s(cluster, job))
    return run.finish()


def any_that_fits(
    cluster: RingCluster, jobs: Sequence[RingJob], pick: Pick, execution: Execution = Execution()
) -> RingSchedule | None:
    """At time 0 and at every exit, start each waiting job for which `pick` finds GPUs, in the order given."""
    check_gangs(cluster, jobs)
    run = RingRun(cluster, execution)
    waiting = list(jobs)
    while waiting:
        still = []
        idle = sum(map(len, run.idle))
        for job in waiting:
            gpus = pick(job, run) if job.gpus <= idle else None
            if gpus is None:
                still.append(job)
            else:
                run.start(job, gpus, estimate_s(cluster, job))
                idle -= job.gpus
        waiting = still
        if waiting:
            if not run.running:
                return None
            run.leave()
    return run.finish()


def queued(
    cluster: RingCluster, jobs: Sequence[RingJob], pick: Pick, execution: Execution = Execution()
) -> RingSchedule | None:
    """Give every job its GPUs at once, busy or not.

    A gang starts when all of them are done with earlier jobs.

    `pick` reads only `run.load`: GPUs are queues, and no job waits for a choice.
    """
    check_gangs(cluster, jobs)
    run = RingRun(cluster, execution)
    line: list[tuple[RingJob, tuple[Gpu, ...]]] = []
    for job in jobs:
        gpus = pick(job, run)
        if gpus is None:
            return None
        load_s = estimate_s(cluster, job)
        for server, gpu in gpus:
            run.load[server][gpu] += load_s
        line.append((job, gpus))
    while line:
        still = []
        taken: set[Gpu] = set()
        for job, gpus in line:
            if taken.isdisjoint(gpus) and all(gpu in run.idle[server] for server, gpu in gpus):
                run.start(job, gpus)
            else:
                still.append((job, gpus))
            taken.update(gpus)
        line = still
        if line:
            run.leave()
    return run.finish()
