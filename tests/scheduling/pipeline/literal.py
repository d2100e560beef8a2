"""The planner's formulas written out plainly, one partition or table cell at a time, for reference."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from profiling.capture.pipedream_profile import PipeDreamProfile, ProfileNode
from scheduling.pipeline.cluster import PartitionOptions, PipelineCluster
from scheduling.pipeline.states import StateSpace

INFINITE = math.inf


def drawn_nodes(draw: np.random.Generator, count: int) -> tuple[ProfileNode, ...]:
    """Round numbers, so that ties occur."""
    return tuple(
        ProfileNode(
            f"n{i}",
            "Conv",
            float(draw.integers(1, 30)) / 1000,
            float(draw.integers(1, 60)) / 1000,
            float(draw.integers(1, 50)) * 1e5,
            float(draw.integers(0, 60)) * 1e5,
        )
        for i in range(count)
    )


def random_profile(seed: int, nodes: int, density: float = 0.3, sources: int = 1) -> PipeDreamProfile:
    """A DAG whose nodes except the first `sources` have predecessors; round numbers, so that ties occur."""
    draw = np.random.default_rng(seed)
    edges = {(a, b) for b in range(sources, nodes) for a in range(b) if draw.random() < density}
    for b in range(sources, nodes):
        if not any(t == b for _, t in edges):
            edges.add((int(draw.integers(b)), b))
    layers = drawn_nodes(draw, nodes)
    return PipeDreamProfile(f"dag-{seed}", layers, tuple((f"n{a}", f"n{b}") for a, b in sorted(edges)))


def ideals(profile: PipeDreamProfile) -> set[frozenset[str]]:
    """All non-empty sets of nodes that contain every predecessor of their members."""
    before: dict[str, set[str]] = {n.id: set() for n in profile.nodes}
    for source, target in profile.edges:
        before[target].add(source)
    names = list(before)
    closed = set()
    for size in range(1, len(names) + 1):
        for chosen in itertools.combinations(names, size):
            inside = set(chosen)
            if all(before[name] <= inside for name in inside):
                closed.add(frozenset(inside))
    return closed


def published(space: StateSpace, cluster: PipelineCluster, options: PartitionOptions) -> float:
    """The recurrence of the public optimizer, cell by cell; infinity where it has no solution."""
    n = space.count
    ratio, limit = options.activation_compression_ratio, cluster.memory_bytes

    def between(column: np.ndarray, i: int, j: int) -> float:
        return float(column[j + 1] - column[i])

    time = {(i, j): between(space.compute_s, i, j) for i in range(n) for j in range(i, n)}
    parameters = {(i, j): between(space.parameter_bytes, i, j) for i, j in time}
    held = {(i, j): between(space.activation_bytes, i, j) + parameters[i, j] for i, j in time}
    inner, best = 1, INFINITE
    for number, (workers, bandwidth) in enumerate(
        zip(cluster.workers, cluster.bandwidth_bytes_per_s, strict=True), start=1
    ):
        table: dict[tuple[int, int, int], float] = {}
        for i, j in time:
            for m in range(1, workers + 1):
                fits = limit is None or math.ceil((workers - m) / m) * held[i, j] <= limit
                if fits and (m == 1 or not options.straight):
                    sync = 4 * (m - 1) * parameters[i, j] / (bandwidth * m * inner)
                    table[i, j, m] = (time[i, j] + sync) / m
        for i in range(n if number < len(cluster.workers) else 1):
            for m in range(2, workers + 1):
                for j in range(i + 1, n):
                    value = table.get((i, j, m), INFINITE)
                    if options.fewer_machines:
                        value = min(value, table.get((i, j, m - 1), INFINITE))
                    for k in range(n):
                        if not space.before[k + 1, j + 1] or (i > 0 and space.before[k + 1, i]):
                            continue
                        for own in range(1, 2 if options.straight else m):
                            if limit is not None and math.ceil((workers - m) / own) * held[k + 1, j] > limit:
                                continue
                            sync = 4 * (own - 1) * parameters[k + 1, j] / (bandwidth * own)
                            parts = [table.get((i, k, m - own), INFINITE), (time[k + 1, j] + sync) / own]
                            if ratio is not None:
                                parts.append(2 * space.output_bytes[k + 1] / (bandwidth * own * ratio))
                                if j < n - 1:
                                    parts.append(2 * space.output_bytes[j + 1] / (bandwidth * own * ratio))
                            value = min(value, max(parts))
                    table[i, j, m] = value
        best = table.get((0, n - 1, workers), INFINITE)
        time = {(i, j): table.get((i, j, workers), INFINITE) for i, j in time}
        inner = workers
    return float(best)


def chains(space: StateSpace, start: int = 0, end: int | None = None) -> Iterator[list[int]]:
    """Every sequence of boundaries from `start` to `end` (None: everything)."""
    end = space.count if end is None else end

    def follow(path: list[int]) -> Iterator[list[int]]:
        if path[-1] == end:
            yield path
            return
        for following in range(path[-1] + 1, end + 1):
            if space.subset[path[-1], following] and (following == end or space.subset[following, end]):
                yield from follow([*path, following])

    return follow([start])


def exhaustive_nested(space: StateSpace, cluster: PipelineCluster, options: PartitionOptions) -> float:
    """Smallest bottleneck of all partitions on any number of levels."""

    def group(level: int, start: int, end: int, after: int) -> float:
        held = space.activation_bytes[end] - space.activation_bytes[start]
        held += space.parameter_bytes[end] - space.parameter_bytes[start]
        if level == 0:
            fits = cluster.memory_bytes is None or (1 + after) * held <= cluster.memory_bytes
            return float(space.compute_s[end] - space.compute_s[start]) if fits else INFINITE
        members, bandwidth = cluster.inside(level - 1), cluster.bandwidth_bytes_per_s[level - 1]
        best = INFINITE
        for path in chains(space, start, end):
            stages = list(itertools.pairwise(path))
            if len(stages) > cluster.workers[level - 1]:
                continue
            for replicas in _shares(len(stages), cluster.workers[level - 1], options.straight):
                worst = 0.0
                for index, ((a, b), own) in enumerate(zip(stages, replicas, strict=True)):
                    behind = math.ceil((sum(replicas[index + 1 :]) * members + after) / own)
                    ring = 2 * (own - 1) / own * (space.parameter_bytes[b] - space.parameter_bytes[a])
                    worst = max(worst, (group(level - 1, a, b, behind) + ring / (bandwidth * members)) / own)
                    if options.activation_compression_ratio is not None:
                        for boundary in {a, b} - {start, end}:
                            moved = 2 * space.output_bytes[boundary] / options.activation_compression_ratio
                            worst = max(worst, moved / (bandwidth * own))
                best = min(best, worst)
        return best

    return group(len(cluster.workers), 0, space.count, 0)


def exhaustive(space: StateSpace, cluster: PipelineCluster, options: PartitionOptions) -> float:
    """Smallest bottleneck of all partitions on one level of workers, each priced separately."""
    (workers,), (bandwidth,) = cluster.workers, cluster.bandwidth_bytes_per_s
    best = INFINITE
    for path in chains(space):
        stages = list(itertools.pairwise(path))
        if len(stages) <= workers:
            for replicas in _shares(len(stages), workers, options.straight):
                best = min(best, price(space, stages, replicas, bandwidth, options, cluster.memory_bytes))
    return best


def price(
    space: StateSpace,
    stages: list[tuple[int, int]],
    replicas: tuple[int, ...],
    bandwidth: float,
    options: PartitionOptions,
    limit: float | None,
) -> float:
    """Bottleneck of one partition; infinity if a stage holds more than the limit."""
    worst = 0.0
    for index, ((a, b), own) in enumerate(zip(stages, replicas, strict=True)):
        in_flight = math.ceil(sum(replicas[index:]) / own)
        held = space.activation_bytes[b] - space.activation_bytes[a]
        parameters = space.parameter_bytes[b] - space.parameter_bytes[a]
        if limit is not None and in_flight * (held + parameters) > limit:
            return INFINITE
        ring = 2 * (own - 1) / own * parameters / bandwidth
        worst = max(worst, (space.compute_s[b] - space.compute_s[a] + ring) / own)
        if options.activation_compression_ratio is not None:
            for boundary in (a, b):
                if 0 < boundary < space.count:
                    moved = 2 * space.output_bytes[boundary] / options.activation_compression_ratio
                    worst = max(worst, moved / (bandwidth * own))
    return float(worst)


def _shares(stages: int, workers: int, straight: bool) -> Iterator[tuple[int, ...]]:
    if straight:
        yield (1,) * stages
        return
    for replicas in itertools.product(range(1, workers + 1), repeat=stages):
        if sum(replicas) <= workers:
            yield replicas
