"""Explains a slowdown by the contended resources and the operators behind them.

The resources' contributions sum to the slowdown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from models.features import RESOURCES
from models.prior import CONTENTION_FEATURES
from predictor.examples.featurizer import JobOnDevice

# Contention features to the resource they represent.
_RESOURCE_OF = {
    "turns": "gpu",
    "gpu_product": "gpu",
    "gpu_excess": "gpu",
    "memory_bandwidth_product": "memory_bandwidth",
    "memory_bandwidth_excess": "memory_bandwidth",
    "compute_product": "compute",
    "launch_product": "launch",
    "host_product": "host",
}
WORDS = {
    "gpu": "device time",
    "memory_bandwidth": "memory bandwidth",
    "compute": "arithmetic units",
    "launch": "kernel launches",
    "host": "copies from the host",
}


@dataclass(frozen=True, slots=True)
class ResourceShare:
    """Part of a job's predicted excess step time that one resource accounts for.

    Attributes:
        resource: one of `models.features.RESOURCES`.
        excess: its part of (slowdown - 1); the parts of a job sum to the whole.
        operators: the job's operator kinds with the highest demand for the resource, with their shares.
    """

    resource: str
    excess: float
    operators: tuple[tuple[str, float], ...]


def shares_of(excess: float, parts: Sequence[float], job: JobOnDevice) -> list[ResourceShare]:
    """Divide a job's excess step time among resources, in proportion to the prior's terms.

    Args:
        excess: slowdown - 1.
        parts: [len(CONTENTION_FEATURES)] the terms, from `prior_parts`.
        job: the job whose operators are named.

    Returns:
        Shares above 0, largest first, with sum `excess`. Empty if the excess or all terms are 0.
    """
    by_resource = dict.fromkeys(RESOURCES, 0.0)
    for name, part in zip(CONTENTION_FEATURES, parts, strict=True):
        by_resource[_RESOURCE_OF[name]] += part
    total = sum(by_resource.values())
    if total <= 0 or excess <= 0:
        return []
    ranked = sorted(by_resource.items(), key=lambda item: -item[1])
    return [
        ResourceShare(name, excess * part / total, operators_wanting(job, name))
        for name, part in ranked
        if part > 0
    ]


@lru_cache(maxsize=4096)
def operators_wanting(job: JobOnDevice, resource: str, most: int = 3) -> tuple[tuple[str, float], ...]:
    """Up to `most` operator kinds with the highest demand for `resource`, largest first.

    Each comes with its share (0 to 1) of the job's demand.
    """
    cost = job.cost.operators
    wanted = {"memory_bandwidth": cost.traffic_bytes, "compute": cost.compute_s, "launch": cost.kernels}
    values = wanted.get(resource, cost.busy_s).sum(0)
    if values.sum() <= 0:
        return ()
    kinds: dict[str, float] = {}
    for operator, value in zip(job.graph.operators, values / values.sum(), strict=True):
        kinds[operator.kind] = kinds.get(operator.kind, 0.0) + float(value)
    return tuple(sorted(kinds.items(), key=lambda item: -item[1])[:most])


def sentence(name: str, slowdown: float, shares: list[ResourceShare]) -> str:
    """One sentence for reports: the slowdown, each resource's share, and the operators behind the largest."""
    if slowdown < 1.005 or not shares:
        return f"{name} runs as fast as alone"
    worst = shares[0]
    demand = ", ".join(f"{kind} {100 * share:.0f} %" for kind, share in worst.operators)
    parts = "".join(f" + {s.excess:.2f} for {WORDS[s.resource]}" for s in shares if s.excess >= 0.005)
    return (
        f"{name}: {slowdown:.2f}x slowdown (1 alone{parts}); "
        f"its demand for {WORDS[worst.resource]} comes from {demand}"
    )
