"""Compute times of a pipeline stage, and its transfers over the links."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduling.pipeline.cluster import PipelineCluster, Span
from scheduling.pipeline.states import StateSpace
from scheduling.pipeline.timeline import StageTimes

# Weight gradients of matrix products and convolutions cost as much as input gradients.
WEIGHT_GRADIENT_SHARE = 0.5


def stage_times(space: StateSpace, span: Span, share: float, send_s: float) -> StageTimes:
    """Times of one microbatch, a `share`-th of the batch, in one stage."""
    forward = float(space.forward_s[span.end] - space.forward_s[span.start]) / share
    backward = float(space.compute_s[span.end] - space.compute_s[span.start]) / share - forward
    weight = WEIGHT_GRADIENT_SHARE * (backward - (forward if space.inputs_only else 0.0))
    return StageTimes(forward, backward - weight, weight, send_s)


def send_s(
    cluster: PipelineCluster, sent_bytes: float, senders: Sequence[int], receivers: Sequence[int]
) -> float:
    """Seconds until each sender's bytes reach its receiver, all at once.

    Workers of a member share its link.
    """
    left, right = np.asarray(senders), np.asarray(receivers)
    apart, slowest_s = left != right, 0.0
    for level, bandwidth in enumerate(cluster.bandwidth_bytes_per_s):
        group, member = cluster.inside(level + 1), cluster.inside(level)
        here = apart & (left // group == right // group)
        if here.any():
            flows = max(
                int(np.unique(side[here] // member, return_counts=True)[1].max()) for side in (left, right)
            )
            slowest_s = max(slowest_s, flows * sent_bytes / bandwidth)
        apart &= ~here
    return slowest_s


def shared_level(cluster: PipelineCluster, devices: range) -> int:
    """The innermost level whose groups hold all these consecutive devices."""
    for level in range(len(cluster.workers)):
        size = cluster.inside(level + 1)
        if devices[0] // size == devices[-1] // size:
            return level
    return len(cluster.workers) - 1
