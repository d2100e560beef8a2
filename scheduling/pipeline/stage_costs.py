"""What a stage of a pipeline computes, and what it sends over which link."""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.pipeline.cluster import PipelineCluster, Span
from scheduling.pipeline.states import StateSpace
from scheduling.pipeline.timeline import StageTimes

# Weight gradients of matrix products and convolutions cost what input gradients do.
WEIGHT_GRADIENT_SHARE = 0.5


def stage_times(space: StateSpace, span: Span, share: float, send_s: float) -> StageTimes:
    """Times of one microbatch, a `share`-th of the batch, in one stage."""
    forward = float(space.forward_s[span.end] - space.forward_s[span.start]) / share
    backward = float(space.compute_s[span.end] - space.compute_s[span.start]) / share - forward
    weight = WEIGHT_GRADIENT_SHARE * (backward - (forward if space.inputs_only else 0.0))
    return StageTimes(forward, backward - weight, weight, send_s)


def link_s(space: StateSpace, cluster: PipelineCluster, cut: int, left: int, right: int) -> float:
    """Seconds that the activations of the whole batch take over the link between two devices; 0 behind the last cut."""
    if cut == space.count or right >= cluster.total:
        return 0.0
    return (
        float(space.output_bytes[cut]) / cluster.bandwidth_bytes_per_s[shared_level(cluster, (left, right))]
    )


def shared_level(cluster: PipelineCluster, devices: Sequence[int]) -> int:
    """The innermost level whose groups hold all these devices."""
    for level in range(len(cluster.workers)):
        size = cluster.inside(level + 1)
        if len({device // size for device in devices}) == 1:
            return level
    return len(cluster.workers) - 1
