"""Tiresias: two-dimensional least attained service, in discretised queues.

Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019, sections 3.2 and 3.3: a job's
priority falls as the GPU-seconds it has received pass thresholds; inside a queue the first submitted goes first; no
length is needed.
"""

from __future__ import annotations

from bisect import bisect_right

from scheduling.core.job import Allocation
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gangs import admit_by_priority

THRESHOLDS_GPU_S = (3_600.0, 36_000.0)  # one and ten GPU-hours


def decide(snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
    """Jobs of the first queues run."""
    if not snapshot.waiting:
        return []
    order = sorted(
        snapshot.active(), key=lambda j: (bisect_right(THRESHOLDS_GPU_S, snapshot.attained_s(j)), j.number)
    )
    return admit_by_priority(snapshot, belief, order)


POLICY = Policy("tiresias", decide, round_s=60.0)
