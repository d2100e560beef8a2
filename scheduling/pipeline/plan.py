"""`plan`: stages, replicas, devices, memory, step time and bubble of a model, for one schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from profiling.errors import InputError
from profiling.graph import ComputationGraph
from scheduling.pipeline.cluster import PartitionOptions, PipelineCluster, devices_of
from scheduling.pipeline.schedules import check_counts, check_schedule, worker_orders
from scheduling.pipeline.stage_costs import stage_times
from scheduling.pipeline.states import StateSpace
from scheduling.pipeline.timeline import Timeline, simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduling.pipeline.straight import Straight


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """One stage of a plan.

    Attributes:
        modules: modules that it computes, in order (nodes of a profile, first modules of blocks of a captured
            graph).
        split_point: the module that it begins with, in the form of `torch.distributed.pipelining`; empty for
            the first.
        replicas: workers that compute it.
        devices: their numbers, 0 to N - 1, neighbours on the innermost level first.
        forward_s, backward_s: seconds of one microbatch on one replica.
        in_flight: most microbatches that a worker holds.
        memory_bytes: memory of each worker.
    """

    modules: tuple[str, ...]
    split_point: str
    replicas: int
    devices: tuple[int, ...]
    forward_s: float
    backward_s: float
    in_flight: int
    memory_bytes: float


@dataclass(frozen=True)
class Plan:
    """How to train one model on several workers.

    Attributes:
        schedule: one of `scheduling.pipeline.schedules.SCHEDULES`.
        microbatches: per step and replica of the pipeline (minibatches drawn, for `pipedream`).
        stages: in the model's order; with `interleaved`, `chunks` stages share a worker.
        step_time_s: seconds per step of the whole batch; for `pipedream`, between two finished minibatches.
        bubble_ratio: share of the workers' time that is idle.
        bottleneck: in words.
        timeline: the simulated step.
        split_spec: module → `BEGINNING`, for `torch.distributed.pipelining`; None if a stage does not begin
            with a module.
    """

    name: str
    schedule: str
    microbatches: int
    stages: tuple[PlannedStage, ...]
    step_time_s: float
    bubble_ratio: float
    bottleneck: str
    workers: int
    timeline: Timeline
    split_spec: dict[str, str] | None = None

    @property
    def split_points(self) -> list[str]:
        """Modules (nodes of a profile) that begin a stage."""
        return [stage.split_point for stage in self.stages[1:]]

    @property
    def workers_used(self) -> int:
        return len({device for stage in self.stages for device in stage.devices})

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.name,
            "schedule": self.schedule,
            "microbatches": self.microbatches,
            "step_time_s": self.step_time_s,
            "bubble_ratio": self.bubble_ratio,
            "bottleneck": self.bottleneck,
            "workers": self.workers,
            "workers_used": self.workers_used,
            "split_points": self.split_points,
            "split_spec": self.split_spec,
            "stages": [
                {
                    "nodes": list(stage.modules),
                    "split_point": stage.split_point,
                    "replicas": stage.replicas,
                    "devices": list(stage.devices),
                    "forward_s": stage.forward_s,
                    "backward_s": stage.backward_s,
                    "in_flight": stage.in_flight,
                    "memory_bytes": stage.memory_bytes,
                }
                for stage in self.stages
            ],
        }


def plan(
    graph: ComputationGraph | StateSpace,
    cluster: PipelineCluster,
    schedule: str = "1f1b",
    microbatches: int = 8,
    memory_cap: float | None = None,
    recompute: bool = False,
    allow_idle: bool = True,
    *,
    device: str | None = None,
    chunks: int = 2,
    depth: int | None = None,
    times: Sequence[tuple[float, float]] | None = None,
    granularity: str = "block",
) -> Plan:
    """Split a model over a cluster.

    `pipedream` chooses replicas for each stage (SOSP 2019, weights stashed, no flush). The other schedules
    cut the model into `p` equal-width stages and run `d` copies of the whole pipeline; all `p` are tried,
    each with the `d` that can be fastest.

    Args:
        graph: a captured graph, or states from another source.
        cluster: the cluster.
        schedule: one of `scheduling.pipeline.schedules.SCHEDULES`.
        microbatches: per step and replica of the pipeline.
        memory_cap: memory of one worker in bytes; if None, the cluster's own limit.
        recompute: keep only a stage's input per microbatch, and recompute its activations in the backward
            pass.
        allow_idle: whether workers may be left idle.
        device: catalogue name for which a captured graph is timed; not needed with `times`.
        chunks: parts of the model on each worker, `interleaved` only.
        depth: workers in a row, if fixed rather than searched for; not with `pipedream`.
        times: measured or predicted (forward, backward) seconds of each operator of a captured graph.
        granularity: where a captured graph may be cut: `block`, `module` or `operator`
            (`scheduling.pipeline.cuts`).

    Raises:
        InfeasibleError: nothing fits; states which stage is short, and by how much.
        InputError: neither device nor times, or a count out of range.
    """
    check_schedule(schedule)
    check_counts(microbatches=microbatches, chunks=chunks)
    if depth is not None:
        check_counts(**{"workers in a row": depth})
        if schedule == "pipedream":
            raise InputError(
                "depth has no effect on pipedream, which chooses its stages and their replicas",
                expected="another schedule with it",
                got=depth,
                hint="leave it out",
            )
    if memory_cap is not None:
        cluster = replace(cluster, memory_bytes=memory_cap)
    batch_size = None
    if isinstance(graph, ComputationGraph):
        from profiling.devices import get_device
        from scheduling.pipeline.computation import graph_states

        spec = None if device is None else get_device(device)
        space, batch_size = graph_states(graph, spec, times, granularity), graph.batch_size
    else:
        space = graph
    if recompute:
        space = replace(space, inputs_only=True, compute_s=space.compute_s + space.forward_s)
    if schedule == "pipedream":
        return _replicated(space, cluster, microbatches, allow_idle)
    from scheduling.pipeline.straight import best_copies

    parts = chunks if schedule == "interleaved" else 1
    best = best_copies(space, cluster, schedule, microbatches, parts, allow_idle, batch_size, depth)
    return _as_plan(space, cluster, schedule, microbatches, best)


def _replicated(space: StateSpace, cluster: PipelineCluster, minibatches: int, allow_idle: bool) -> Plan:
    from scheduling.pipeline.optimal import solve_optimal
    from scheduling.pipeline.partition import bottleneck_in_words

    options = PartitionOptions(activation_compression_ratio=1.0)
    bottleneck, spans = solve_optimal(space, cluster, options, idle=allow_idle)
    replicas = [math.prod(span.replicas) for span in spans]
    stages = [
        _stage(space, span.start, span.end, 1.0, devices, span.versions, span.memory_bytes)
        for span, devices in zip(spans, devices_of(cluster, spans), strict=True)
    ]
    parts = []
    for span, following in zip(spans, [*spans[1:], None], strict=True):
        send = 0.0
        if following is not None:
            # They meet in the group of the outermost level on which they are different stages.
            depth = next(
                d for d, (a, b) in enumerate(zip(span.place, following.place, strict=True)) if a != b
            )
            send = float(space.output_bytes[span.end]) / cluster.bandwidth_bytes_per_s[-1 - depth]
        parts.append(stage_times(space, span, 1.0, send))
    timeline = simulate(worker_orders("pipedream", len(parts), minibatches, replicas=replicas), parts)
    used = sum(stage.forward_s + stage.backward_s for stage in stages)
    words = bottleneck_in_words(space, spans, cluster, options, bottleneck)
    return Plan(
        space.name,
        "pipedream",
        minibatches,
        tuple(stages),
        bottleneck,
        max(0.0, 1 - used / (bottleneck * sum(replicas))) if bottleneck > 0 else 0.0,
        words,
        cluster.total,
        timeline,
        space.split_spec([span.start for span in spans[1:]]),
    )


def _as_plan(
    space: StateSpace, cluster: PipelineCluster, schedule: str, microbatches: int, found: Straight
) -> Plan:
    bounds, copies, timeline, step_time_s = found.bounds, found.copies, found.timeline, found.step_time_s
    parts, width, share = len(bounds) - 1, len(timeline.bubble_s), copies * microbatches
    stages = []
    for index, (start, end) in enumerate(pairwise(bounds)):
        worker = index % width
        devices = range(worker * copies, (worker + 1) * copies)
        in_flight, memory_bytes = found.in_flight[worker], found.memory_bytes[worker]
        stages.append(_stage(space, start, end, share, devices, in_flight, memory_bytes))
    computing_s = [stage.forward_s + stage.backward_s for stage in stages]
    slowest = max(range(parts), key=computing_s.__getitem__)
    widest = max(range(parts), key=found.send_s.__getitem__)
    idle = timeline.bubble_ratio
    whole = timeline.total_s
    if found.send_s[widest] > computing_s[slowest]:
        words = f"activations from stage {widest + 1} to {widest + 2} take {found.send_s[widest]:.4g} s"
    else:
        words = f"stage {slowest + 1} of {parts} takes {computing_s[slowest]:.4g} s"
    words += f" per microbatch; workers idle {100 * idle:.0f} % of the step"
    if step_time_s > whole * 1.0001:
        words += f"; summing gradients over {copies} copies adds {100 * (1 - whole / step_time_s):.0f} %"
    bubble = 1 - whole * (1 - idle) / step_time_s if step_time_s > 0 else 0.0
    return Plan(
        space.name,
        schedule,
        microbatches,
        tuple(stages),
        step_time_s,
        bubble,
        words,
        cluster.total,
        timeline,
        space.split_spec(bounds[1:-1]),
    )


def _stage(
    space: StateSpace,
    start: int,
    end: int,
    share: float,
    devices: Sequence[int],
    in_flight: int,
    memory_bytes: float,
) -> PlannedStage:
    forward = float(space.forward_s[end] - space.forward_s[start]) / share
    both = float(space.compute_s[end] - space.compute_s[start]) / share
    nodes = tuple(space.members(start, end))
    return PlannedStage(
        nodes,
        nodes[0] if start else "",
        len(devices),
        tuple(devices),
        forward,
        both - forward,
        in_flight,
        memory_bytes,
    )
