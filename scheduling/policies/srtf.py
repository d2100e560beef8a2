"""Shortest remaining time first, preemptive, on whole GPUs."""

from __future__ import annotations

from predictor.types import SetPredictor
from scheduling.policies.api import Policy
from scheduling.policies.gangs import admit_by_priority, remaining_s
from scheduling.sets import SetCache
from scheduling.simulator.job import Allocation
from scheduling.simulator.state import SchedulingSnapshot


def decide(snapshot: SchedulingSnapshot, belief: SetPredictor | SetCache) -> list[Allocation]:
    """The jobs with the least predicted time left run."""
    if not snapshot.waiting:
        return []
    order = sorted(snapshot.active(), key=lambda j: (remaining_s(snapshot, belief, j), j.number))
    return admit_by_priority(snapshot, belief, order)


POLICY = Policy("srtf", decide)
