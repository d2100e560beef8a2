"""ISACPP with gangs that may share GPUs: beside one single-GPU job each, at the pace of the slowest
member."""

from __future__ import annotations

from scheduling.core.job import Allocation
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gang_sharing import share_gangs
from scheduling.placement.queueing import QueueConfig, first_overdue, in_order
from scheduling.placement.ranking import PlacementConfig
from scheduling.policies import isacpp

# The guard's projection only supports gangs on whole GPUs.
_UNGUARDED = QueueConfig(tolerance=float("inf"))
_CONFIG = PlacementConfig(max_members=2)


def decide(snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
    """Run ISACPP, then place waiting gangs beside other jobs, shortest first.

    While a job is overdue, no gang joins others, because GPUs may be reserved for it.
    """
    started = isacpp.decide(snapshot, belief, _CONFIG, _UNGUARDED)
    if first_overdue(snapshot, belief, _UNGUARDED.aging_s) is not None:
        return started
    waiting = in_order(snapshot, belief, _UNGUARDED.order)
    return started + share_gangs(snapshot, belief, started, waiting, _CONFIG.max_slowdown)


POLICY = Policy("isacpp-gangs", decide, preemptive=True)
