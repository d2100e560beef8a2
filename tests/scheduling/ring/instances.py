"""Small clusters and job lists for the schedulers' tests."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from scheduling.ring.engine import Execution, RingRun, RingSchedule
from scheduling.ring.model import RingCluster, RingJob


def cluster(*servers: int, alpha: float = 0.2) -> RingCluster:
    return RingCluster(1250, 50000, 20000, alpha, 1, 0.001, servers)


def job(name: str, gpus: int, compute_s: float = 0.05, gradient_size: float = 20, iterations: float = 100):
    return RingJob(name, gpus, gradient_size, compute_s, 1, 0.0, iterations)


def mix(seed: int, count: int = 24, widest: int = 8) -> list[RingJob]:
    source = random.Random(seed)
    return [
        job(
            f"j{n}",
            source.choice([g for g in (1, 1, 2, 4, 8) if g <= widest]),
            source.uniform(0.01, 0.05),
            source.uniform(1, 20),
            source.randint(100, 600),
        )
        for n in range(count)
    ]


def replay(
    place: RingCluster, jobs: list[RingJob], schedule: RingSchedule, execution: Execution
) -> RingSchedule:
    """The schedule again from its starts and GPUs alone; ends follow from the contention."""
    by_name = {job.name: job for job in jobs}
    run = RingRun(place, execution)
    for assignment in sorted(schedule.assignments, key=lambda assignment: assignment.start_s):
        run.advance(assignment.start_s)
        run.start(by_name[assignment.job], assignment.gpus)
    return run.finish()


@st.composite
def instances(draw: st.DrawFn, jobs: int = 7, servers: int = 4):
    """A cluster and jobs that fit it."""
    counts = draw(st.lists(st.integers(1, 8), min_size=1, max_size=servers))
    total = sum(counts)
    sizes = draw(st.lists(st.integers(1, min(8, total)), min_size=1, max_size=jobs))
    made = [
        job(
            f"j{n}",
            gpus,
            draw(st.floats(0.01, 0.2)),
            draw(st.floats(0, 50)),
            draw(st.integers(1, 300)),
        )
        for n, gpus in enumerate(sizes)
    ]
    return cluster(*counts, alpha=draw(st.floats(0, 1))), made
