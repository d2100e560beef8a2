"""Horus-like packing: jobs share a GPU while their predicted utilisation adds up to at most 1.

After Yeung et al., "Horus: Interference-aware and prediction-based scheduling in deep learning systems", IEEE
TPDS 33(1), 2022: the GPU with the lowest utilisation is chosen, and memory must fit; interference itself is
not predicted.
"""

from __future__ import annotations

from functools import partial

from profiling.workload import ColocationSet, Workload
from scheduling.core.job import Allocation
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.packing import pack


def decide(snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
    """Start waiting jobs: on an empty GPU, else where the sum of utilisations is least and at most 1."""
    demand = partial(solo_utilization, snapshot, belief)
    return pack(snapshot, belief, snapshot.waiting.values(), demand, 1.0)


def solo_utilization(
    snapshot: SchedulingSnapshot, belief: SetCache, device: str, sharing: str, workload: Workload
) -> float:
    """Predicted utilisation of `workload` alone, 0 to 1."""
    memo: dict[object, float] = snapshot.derived(("utilization", belief), dict)
    key = (device, sharing, workload)
    if key not in memo:
        answer = belief.predictor.predict_arrays([ColocationSet(device, (workload,), sharing)])
        memo[key] = float(answer.utilization_ratio[0, 0])
    return memo[key]


POLICY = Policy("horus", decide)
