"""Gradient exchange of data-parallel training with a frozen prefix.

There are two cases. A model that is wrapped again after freezing reduces only unfrozen gradients. A model
wrapped before freezing (`find_unused_parameters`) reduces all gradients, and the frozen ones have no backward
pass to overlap with, so freezing *adds* exposed time. BERT-MLM on V100 was measured in the second case: its
exposed time doubles from k = 0 to 72 of 103.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from predictor.types import Floats
from profiling.errors import InputError


@dataclass(frozen=True, slots=True)
class Exchange:
    """Time of an all-reduce of all gradients, and how much of it overlaps with the backward pass.

    Attributes:
        base_s: time on many GPUs of one node, before the ring's (n - 1) / n.
        per_doubling_s: additional time for each doubling of the GPUs (stragglers, latency).
        across_nodes_s: additional time if the ring leaves the node.
        overlap_ratio: share of the backward pass with which an exchange can overlap, 0 to 1.
        last_bucket_ratio: share of all gradients in the last bucket, whose exchange is always exposed; if fewer are
            trained, all of theirs.
        slowdown_one_node, slowdown_per_doubling: compute time on n GPUs relative to one (input pipeline,
            power).
    """

    base_s: float = 0.0
    per_doubling_s: float = 0.0
    across_nodes_s: float = 0.0
    overlap_ratio: float = 0.7
    last_bucket_ratio: float = 0.05
    slowdown_one_node: float = 1.0
    slowdown_per_doubling: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            top = 1.0 if name.endswith("_ratio") else np.inf
            if not -1.0 <= value <= top or (value < 0 and name != "slowdown_per_doubling"):
                raise InputError(f"{name} of an exchange is out of range", expected=f"0 to {top}", got=value)

    def full_s(self, gpus: Floats, nodes: Floats) -> Floats:
        """[N] seconds to reduce every gradient; 0 on one GPU."""
        ring = (gpus - 1.0) / gpus
        per = self.base_s + self.per_doubling_s * np.log2(gpus) + self.across_nodes_s * (nodes > 1)
        return ring * per

    def exposed_s(
        self, parameter_share: Floats, backward_s: Floats, gpus: Floats, nodes: Floats, *, rewrapped: bool
    ) -> Floats:
        """[N] seconds of a step spent waiting for the exchange.

        If `rewrapped`, they are non-increasing in k together with `backward_s`, because `overlap_ratio` is at
        most 1.
        """
        full = self.full_s(gpus, nodes)
        last = full * np.minimum(self.last_bucket_ratio, parameter_share)
        trained = np.maximum(full * parameter_share - self.overlap_ratio * backward_s, last)
        return trained if rewrapped else trained + full * (1.0 - parameter_share)

    def compute_factor(self, gpus: Floats) -> Floats:
        """[N] compute time relative to one GPU."""
        factor = self.slowdown_one_node + self.slowdown_per_doubling * np.log2(gpus)
        return np.where(gpus > 1, np.maximum(factor, 0.1), 1.0)
