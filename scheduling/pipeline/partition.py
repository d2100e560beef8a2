"""A model's partition into pipeline stages, for people and programs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scheduling.pipeline.cluster import PartitionOptions, PipelineCluster, Span
from scheduling.pipeline.states import StateSpace

if TYPE_CHECKING:
    from scheduling.pipeline.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline stage.

    Attributes:
        nodes: nodes that it computes, in order.
        replicas: workers that compute it, each a share of the minibatches.
        level_replicas: the same by level of the cluster, innermost first; their product is `replicas`.
        place: number of the stage on each level, outermost first: `(1, 0)` is the first inside the second.
        forward_s: forward of one minibatch on one worker.
        compute_s: forward and backward.
        parameter_bytes: parameters of the stage.
        input_bytes: bytes of one minibatch received from earlier stages.
        in_flight: minibatches that a worker holds between their forward and backward.
        memory_bytes: memory of each worker.
    """

    nodes: tuple[str, ...]
    replicas: int
    level_replicas: tuple[int, ...]
    place: tuple[int, ...]
    forward_s: float
    compute_s: float
    parameter_bytes: float
    input_bytes: float
    in_flight: int
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class Partition:
    """Stages, first to last, and their performance.

    Attributes:
        bottleneck_s: seconds between two finished minibatches.
        data_parallel_s: the same without stages, with every worker a replica of the whole model.
        workers_used: workers that are not idle.
        search: `all cuts`, or how the cuts were thinned out for a model with very many.
        bottleneck: in words.
        split_spec: as in `scheduling.pipeline.plan.Plan`.
    """

    name: str
    bottleneck_s: float
    data_parallel_s: float
    stages: tuple[Stage, ...]
    workers: int
    workers_used: int
    states: int
    search: str
    bottleneck: str
    split_spec: dict[str, str] | None = None

    @property
    def speedup(self) -> float:
        return self.data_parallel_s / self.bottleneck_s if self.bottleneck_s > 0 else 1.0

    def timeline(self, minibatches: int) -> Timeline:
        """The first minibatches through the pipeline: 1F1B, replicated stages, no flush, no transfers."""
        from scheduling.pipeline.schedules import worker_orders
        from scheduling.pipeline.timeline import StageTimes, simulate

        halves = [(s.forward_s, (s.compute_s - s.forward_s) / 2) for s in self.stages]
        orders = worker_orders(
            "pipedream", len(self.stages), minibatches, replicas=[s.replicas for s in self.stages]
        )
        return simulate(orders, [StageTimes(forward, half, half) for forward, half in halves])

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.name,
            "bottleneck_s": self.bottleneck_s,
            "data_parallel_s": self.data_parallel_s,
            "speedup": self.speedup,
            "stages": [
                {
                    "nodes": list(stage.nodes),
                    "replicas": stage.replicas,
                    "memory_bytes": stage.memory_bytes,
                    "level_replicas": list(stage.level_replicas),
                    "place": list(stage.place),
                    "in_flight": stage.in_flight,
                    "forward_s": stage.forward_s,
                    "compute_s": stage.compute_s,
                    "parameter_bytes": stage.parameter_bytes,
                    "input_bytes": stage.input_bytes,
                }
                for stage in self.stages
            ],
            "workers": self.workers,
            "workers_used": self.workers_used,
            "states": self.states,
            "search": self.search,
            "bottleneck": self.bottleneck,
            "split_spec": self.split_spec,
        }


def partition(
    space: StateSpace,
    cluster: PipelineCluster,
    options: PartitionOptions = PartitionOptions(),
    *,
    compat: bool = False,
) -> Partition:
    """Split a model over workers so that minibatches leave the pipeline as often as possible.

    `compat` gives the results of the public PipeDream optimizer, including its errors; `memory_bytes` then
    follow that code's count, too.

    Raises:
        InfeasibleError: nothing fits; states which stage is short, and by how much.
    """
    from scheduling.pipeline.compat import data_parallel_compat, solve_compat
    from scheduling.pipeline.optimal import data_parallel, solve_optimal

    if compat:
        bottleneck, spans = solve_compat(space, cluster, options)
        parallel = data_parallel_compat(space, cluster)
    else:
        bottleneck, spans = solve_optimal(space, cluster, options)
        parallel = data_parallel(space, cluster)
    stages = stages_of(space, spans)
    return Partition(
        space.name,
        bottleneck,
        parallel,
        stages,
        cluster.total,
        sum(stage.replicas for stage in stages),
        space.count,
        space.search,
        bottleneck_in_words(space, spans, cluster, options, bottleneck, 4 if compat else 2),
        space.split_spec([span.start for span in spans[1:]]),
    )


def stages_of(space: StateSpace, spans: list[Span]) -> tuple[Stage, ...]:
    """Stages of consecutive spans; a node belongs to the first stage whose span has it."""
    stages = []
    for span in spans:
        forward, compute, parameters = (
            float(column[span.end] - column[span.start])
            for column in (space.forward_s, space.compute_s, space.parameter_bytes)
        )
        stages.append(
            Stage(
                tuple(space.members(span.start, span.end)),
                math.prod(span.replicas),
                span.replicas,
                span.place,
                forward,
                compute,
                parameters,
                float(space.output_bytes[span.start]),
                span.versions,
                span.memory_bytes,
            )
        )
    return tuple(stages)


def bottleneck_in_words(
    space: StateSpace,
    spans: list[Span],
    cluster: PipelineCluster,
    options: PartitionOptions,
    bottleneck_s: float,
    volume: int = 2,
) -> str:
    """The stage or cut that takes `bottleneck_s`, and what it spends its time on.

    `volume` is how often a replica moves its parameters to sum gradients: 2 in a ring, 4 as published.
    """
    candidates: list[tuple[float, str]] = []
    for number, span in enumerate(spans, start=1):
        compute = float(space.compute_s[span.end] - space.compute_s[span.start])
        parameters = float(space.parameter_bytes[span.end] - space.parameter_bytes[span.start])
        total = compute
        for level, own in enumerate(span.replicas):
            ring = volume * (own - 1) / own * parameters
            total = (total + ring / (cluster.bandwidth_bytes_per_s[level] * cluster.inside(level))) / own
        copies = math.prod(span.replicas)
        share = compute / copies / total if total > 0 else 1.0
        text = f"stage {number} of {len(spans)} ({copies} replica{'s' if copies > 1 else ''}): {100 * share:.0f} % computing"
        candidates.append(
            (total, text + (f", {100 * (1 - share):.0f} % summing gradients" if copies > 1 else ""))
        )
        if options.activation_compression_ratio is None or number == 1:
            continue
        for side in (spans[number - 2], span):
            for own, bandwidth in zip(side.replicas, cluster.bandwidth_bytes_per_s, strict=True):
                moved = 2 * float(space.output_bytes[span.start]) / options.activation_compression_ratio
                candidates.append(
                    (moved / (bandwidth * own), f"activations from stage {number - 1} to {number}")
                )
    return min(candidates, key=lambda item: abs(item[0] - bottleneck_s))[1]
