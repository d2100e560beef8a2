"""Earliest deadline first, preemptive, on whole GPUs; jobs without a deadline run by weight on the rest.

Liu and Layland, JACM 20(1), 1973. Deadlines are those of the trace, and a job that misses its deadline keeps
its place.
"""

from __future__ import annotations

from scheduling.core.job import Allocation, JobState
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gangs import admit_by_priority


def decide(snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
    """The jobs whose deadlines come first run."""
    if not snapshot.waiting:
        return []
    return admit_by_priority(snapshot, belief, sorted(snapshot.active(), key=_due))


def _due(job: JobState) -> tuple[float, float, int]:
    deadline = job.job.deadline_s
    due_s = float("inf") if deadline is None else job.job.submit_s + deadline
    return due_s, -job.job.priority, job.number


POLICY = Policy("edf", decide)
