"""Shortest remaining time first, preemptive, on whole GPUs."""

from __future__ import annotations

from heapq import merge

from scheduling.core.job import Allocation
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.admission import admit_by_priority
from scheduling.placement.gangs import shortest_first, shortness
from scheduling.placement.queueing import in_order


def decide(snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
    """The jobs with the least predicted time left run."""
    if not snapshot.waiting:
        return []
    # The queue is kept in order, because in a long one sorting every job takes longer than the decision.
    running = shortest_first(snapshot, belief, snapshot.running.values())
    waiting = in_order(snapshot, belief)
    order = merge(waiting, running, key=lambda job: shortness(snapshot, belief, job))
    return admit_by_priority(snapshot, belief, order)


POLICY = Policy("srtf", decide)
