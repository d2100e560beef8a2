"""Earliest deadline first, preemptive, on whole GPUs; jobs without a deadline run by weight on the rest.

Liu and Layland, JACM 20(1), 1973. Deadlines are those of the trace, and a job that misses its deadline keeps
its place.
"""

from __future__ import annotations

from heapq import merge

from scheduling.core.job import Allocation, JobState
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.admission import admit_by_priority
from scheduling.placement.queueing import KeptOrder, Key


def decide(snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
    """The jobs whose deadlines come first run."""
    if not snapshot.waiting:
        return []
    waiting = snapshot.derived("edf", KeptOrder).jobs(snapshot, _urgency)
    running = sorted(snapshot.running.values(), key=_then_submission)
    return admit_by_priority(snapshot, belief, merge(waiting, running, key=_then_submission))


def _urgency(job: JobState) -> Key:
    deadline = job.job.deadline_s
    due_s = float("inf") if deadline is None else job.job.submit_s + deadline
    return due_s, -job.job.priority


def _then_submission(job: JobState) -> tuple[Key, int]:
    return _urgency(job), job.number


POLICY = Policy("edf", decide)
