"""Shortest job first by predicted length, on whole GPUs; whoever fits may overtake."""

from __future__ import annotations

from predictor.types import SetPredictor
from scheduling.policies.api import Policy
from scheduling.policies.exclusive import start
from scheduling.policies.gangs import remaining_s
from scheduling.sets import SetCache
from scheduling.simulator.job import Allocation
from scheduling.simulator.state import SchedulingSnapshot


def decide(snapshot: SchedulingSnapshot, belief: SetPredictor | SetCache) -> list[Allocation]:
    """Start waiting jobs, the shortest first."""
    if not snapshot.free_of_type.any():
        return []
    shortest = sorted(snapshot.waiting.values(), key=lambda j: (remaining_s(snapshot, belief, j), j.number))
    return start(snapshot, belief, shortest)


POLICY = Policy("sjf", decide)
