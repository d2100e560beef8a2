"""Blind packing: an empty GPU if there is one, else beside any other job, as long as memory fits."""

from __future__ import annotations

from functools import partial

from scheduling.core.job import Allocation
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.packing import pack
from scheduling.placement.queueing import in_order


def decide(
    snapshot: SchedulingSnapshot, belief: SetCache, max_members: int = 2, shortest: bool = False
) -> list[Allocation]:
    """Start waiting jobs: alone if a GPU is empty, else where the fewest run; by submission or shortest
    first."""
    waiting = in_order(snapshot, belief, "shortest" if shortest else "fifo")
    return pack(snapshot, belief, waiting, demand=lambda *_: 1.0, max_members=max_members)


POLICY = Policy("blind", decide)
SHORTEST = Policy("blind-sjf", partial(decide, shortest=True))
