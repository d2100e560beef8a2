"""Lucid-like packing: jobs are labelled by solo utilisation, and only light combinations are allowed.

After Hu et al., "Lucid: A Non-intrusive, Scalable and Interpretable Scheduler for Deep Learning Training
Jobs", ASPLOS 2023: tiny (0), medium (1) and jumbo (2) jobs by solo utilisation; two share a GPU if their
labels sum to at most 2; shorter jobs first. The thresholds are ours.
"""

from __future__ import annotations

from bisect import bisect_right

from profiling.workload import Workload
from scheduling.core.job import Allocation
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.packing import pack
from scheduling.placement.queueing import in_order
from scheduling.policies.horus import solo_utilization

THRESHOLDS = (0.4, 0.8)
BUDGET = 2


def decide(snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
    """Start waiting jobs, shortest first: on an empty GPU, else where the labels add up to at most the
    budget."""

    def label(device: str, sharing: str, workload: Workload) -> float:
        return bisect_right(THRESHOLDS, solo_utilization(snapshot, belief, device, sharing, workload))

    waiting = in_order(snapshot, belief)
    return pack(snapshot, belief, waiting, label, BUDGET)


POLICY = Policy("lucid", decide)
