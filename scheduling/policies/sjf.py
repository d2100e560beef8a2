"""Shortest job first by predicted length, on whole GPUs; any job that fits may overtake."""

from __future__ import annotations

from scheduling.core.job import Allocation
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.queueing import in_order
from scheduling.policies.exclusive import start


def decide(snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
    """Start waiting jobs, the shortest first."""
    if not snapshot.free_of_type.any():
        return []
    return start(snapshot, belief, in_order(snapshot, belief))


POLICY = Policy("sjf", decide)
