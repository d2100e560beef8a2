"""Pipelines with a flush: how many stages, how many copies of the pipeline, and where to cut."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from profiling.errors import InfeasibleError
from scheduling.pipeline.chain_cut import ChainCut, part_bytes
from scheduling.pipeline.cluster import PipelineCluster, Span
from scheduling.pipeline.schedules import worker_orders
from scheduling.pipeline.stage_costs import link_s, shared_level, stage_times
from scheduling.pipeline.timeline import StageTimes, Timeline, peak_in_flight, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from scheduling.pipeline.states import StateSpace

MAX_DEPTH = 64
"""Pipelines deeper than this are not tried."""

Found = tuple[list[int], int, float, Timeline, list[int], list[float]]


def best_copies(
    space: StateSpace,
    cluster: PipelineCluster,
    schedule: str,
    microbatches: int,
    chunks: int,
    allow_idle: bool,
    batch_size: int | None,
    depth: int | None = None,
) -> Found:
    """Boundaries of the parts, copies, step seconds, timeline, and per worker of a copy: in flight and memory.

    Every depth (or the one asked for) that the workers, the cuts and the batch allow is tried with as many copies as there are workers for; a
    microbatch has at least one sample.

    Raises:
        InfeasibleError: nothing fits the memory, or no depth is possible.
    """
    best: Found | None = None
    short: tuple[float, str] | None = None
    wanted = depth
    for depth in range(1, min(cluster.total, MAX_DEPTH, space.count) + 1):
        if wanted not in (None, depth):
            continue
        copies = cluster.total // depth
        if batch_size is not None:
            copies = min(copies, batch_size // microbatches)
        if copies < 1 or (not allow_idle and copies * depth != cluster.total):
            continue
        if depth * chunks > space.count or (chunks > 1 and microbatches % depth):
            continue
        outcome = _one_depth(space, cluster, schedule, microbatches, chunks, depth, copies)
        if isinstance(outcome, tuple) and isinstance(outcome[0], list):
            if best is None or outcome[2] < best[2] * (1 - 1e-12):
                best = outcome
        elif short is None or outcome[0] < short[0]:
            short = outcome
    if best is not None:
        return best
    if short is not None:
        raise InfeasibleError(
            f"no {schedule} pipeline of {space.name} fits: {short[1]}",
            expected=f"at most {cluster.memory_bytes:.4g} bytes on each worker",
            hint="raise the memory limit, recompute activations, use smaller batches, or more workers",
        )
    raise InfeasibleError(
        f"no {schedule} pipeline of {space.name} is possible with {cluster.total} workers",
        expected=f"a depth of 1 to {min(cluster.total, MAX_DEPTH, space.count)}, a batch with a sample for each microbatch, a cut for each stage"
        + (", microbatches in multiples of the depth" if chunks > 1 else ""),
        got=f"depth {wanted or 'any'}, batch {batch_size}, {microbatches} microbatches, {space.count} places to cut",
    )


def _one_depth(
    space: StateSpace,
    cluster: PipelineCluster,
    schedule: str,
    microbatches: int,
    chunks: int,
    depth: int,
    copies: int,
) -> Found | tuple[float, str]:
    share = copies * microbatches
    held = _in_flight(schedule, microbatches, depth, chunks)
    limit = math.inf if cluster.memory_bytes is None else cluster.memory_bytes
    # With several chunks a worker's memory is known only when all are cut; each may take its share of the limit.
    in_flight = [held[p % depth] / chunks for p in range(depth * chunks)]
    if space.is_chain:
        chain = ChainCut(space, in_flight, share)
        bounds = chain.by_time(limit / chunks) or chain.by_memory()
    else:
        bounds = _cut_branching(space, in_flight, share, limit / chunks)
    if bounds is None:
        return math.inf, "there are not enough places to cut"
    needed = [
        sum(
            float(part_bytes(space, bounds[p], bounds[p + 1], in_flight[p], share))
            for p in range(worker, depth * chunks, depth)
        )
        for worker in range(depth)
    ]
    worst = max(range(depth), key=lambda worker: needed[worker])
    if needed[worst] > limit:
        names = space.members(bounds[worst], bounds[worst + 1])
        return needed[worst] - limit, (
            f"even the split over {depth} that needs least holds {needed[worst]:.4g} bytes on stage {worst + 1}"
            f" ({names[0]} to {names[-1]}, {held[worst]} microbatches in flight), {needed[worst] - limit:.4g} too many"
        )
    parts: list[StageTimes] = []
    for p in range(depth * chunks):
        left, right = (p % depth) * copies, ((p + 1) % depth) * copies
        send = link_s(space, cluster, bounds[p + 1], left, right) / share
        parts.append(stage_times(space, Span(bounds[p], bounds[p + 1], (1,), 1, 0.0), share, send))
    timeline = simulate(worker_orders(schedule, depth, microbatches, chunks=chunks), parts)
    sync = 0.0
    for worker in range(depth):
        devices = range(worker * copies, (worker + 1) * copies)
        bandwidth = cluster.bandwidth_bytes_per_s[shared_level(cluster, devices)]
        parameters = sum(
            float(space.parameter_bytes[bounds[p + 1]] - space.parameter_bytes[bounds[p]])
            for p in range(worker, depth * chunks, depth)
        )
        sync = max(sync, 2 * (copies - 1) / copies * parameters / bandwidth)
    return bounds, copies, timeline.total_s + sync, timeline, list(timeline.peak_in_flight), needed


def _cut_branching(
    space: StateSpace, in_flight: Sequence[float], share: float, limit: float
) -> list[int] | None:
    """Boundaries of the parts: the slowest least within the memory, else the fullest least."""
    every = np.arange(space.count + 1)

    def memory(part: int) -> NDArray[np.float64]:
        return part_bytes(space, every[:, None], every[None, :], in_flight[part], share)

    def time(part: int) -> NDArray[np.float64]:
        allowed = space.subset & (memory(part) <= limit)
        return np.where(allowed, space.compute_s[None, :] - space.compute_s[:, None], np.inf)

    parts = len(in_flight)
    return cut(time, parts) or cut(lambda part: np.where(space.subset, memory(part), np.inf), parts)


def cut(cost: Callable[[int], NDArray[np.float64]], parts: int) -> list[int] | None:
    """Boundaries 0 = b0 < b1 < ... = n of so many parts, the largest cost least; `cost` gives a part's matrix."""
    best = np.full(len(cost(0)), np.inf)
    best[0] = 0.0
    tables = [best]
    for part in range(parts):
        tables.append(np.maximum(tables[-1][:, None], cost(part)).min(axis=0))
    if not math.isfinite(tables[-1][-1]):
        return None
    bounds = [len(best) - 1]
    for part in range(parts - 1, -1, -1):
        through = np.maximum(tables[part], cost(part)[:, bounds[-1]])
        bounds.append(int(np.flatnonzero(through == tables[part + 1][bounds[-1]])[0]))
    return bounds[::-1]


def _in_flight(schedule: str, microbatches: int, depth: int, chunks: int) -> list[int]:
    """Most (microbatch, part) pairs that each worker holds."""
    orders = worker_orders(schedule, depth, microbatches, chunks=chunks)
    split = schedule == "zb-h1"
    return [peak_in_flight(order, split) for order in orders]
