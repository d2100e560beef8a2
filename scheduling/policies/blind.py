"""Blind packing: an empty GPU if there is one, else beside any other job, as long as memory fits."""

from __future__ import annotations

from functools import partial

from scheduling.core.job import Allocation
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gangs import shortest_first
from scheduling.placement.packing import pack


def decide(
    snapshot: SchedulingSnapshot, belief: SetCache, max_members: int = 2, shortest: bool = False
) -> list[Allocation]:
    """Start waiting jobs: alone where a GPU is empty, else where the fewest run; by submission or shortest first."""
    waiting = list(snapshot.waiting.values())
    order = shortest_first(snapshot, belief, waiting) if shortest else waiting
    return pack(snapshot, belief, order, demand=lambda *_: 1.0, max_members=max_members)


POLICY = Policy("blind", decide)
SHORTEST = Policy("blind-sjf", partial(decide, shortest=True))
