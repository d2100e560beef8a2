"""Shortest remaining time first, preemptive, on whole GPUs."""

from __future__ import annotations

from scheduling.core.job import Allocation
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gangs import admit_by_priority, shortest_first


def decide(snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
    """The jobs with the least predicted time left run."""
    if not snapshot.waiting:
        return []
    return admit_by_priority(snapshot, belief, shortest_first(snapshot, belief, snapshot.active()))


POLICY = Policy("srtf", decide)
