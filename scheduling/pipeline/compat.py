"""PipeDream's optimizer as published, including its errors, for comparison with its results.

Recurrence of Narayanan et al., SOSP 2019, section 3.1, in the form of the public code (docs/pipeline.md
states where that form is wrong and what `optimal` does instead).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from profiling.errors import InfeasibleError
from scheduling.pipeline.cluster import PartitionOptions, PipelineCluster, Span, shortage
from scheduling.pipeline.minmax import chain_bottleneck

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scheduling.pipeline.states import StateSpace

# Cost of a stage for (workers up to and including it, its own workers): [rows, n + 1] over (start, end).
StageCost = Callable[[int, int], "NDArray[np.float64]"]


@dataclass
class _Level:
    """One level of the cluster: its tables A[m][start, end] and the costs behind them."""

    workers: int
    options: PartitionOptions
    alone: StageCost
    last: StageCost
    tables: list[NDArray[np.float64]]

    def solve(self, rows: int) -> None:
        for m in range(1, self.workers + 1):
            best = self.alone(m, m)[:rows].copy()
            if m > 1:
                fixed = best.copy()
                if self.options.fewer_machines:
                    np.minimum(best, self.tables[m - 1], out=best)
                for own in self._own(m):
                    np.minimum(best, chain_bottleneck(self.tables[m - own], self.last(m, own)), out=best)
                # A part of a single state is never split and never inherits: its row remains its cost alone.
                index = np.arange(rows)
                best[index, index + 1] = fixed[index, index + 1]
            self.tables.append(best)

    def _own(self, m: int) -> range:
        return range(1, 2 if self.options.straight else m)

    def trace(self, start: int, end: int, m: int) -> list[tuple[int, int, int, int]]:
        """(start, end, workers, workers up to and including it) of the stages of the best chain, in order."""
        value = self.tables[m][start, end]
        while self.options.fewer_machines and m > 1 and end > start + 1:
            if self.alone(m, m)[start, end] == value or self.tables[m - 1][start, end] != value:
                break
            m -= 1
        if self.alone(m, m)[start, end] == value:
            return [(start, end, m, m)]
        for own in self._own(m):
            through = np.maximum(self.tables[m - own][start], self.last(m, own)[:, end])
            ends = np.flatnonzero(through == value)
            if ends.size:
                middle = int(ends[0])
                return [*self.trace(start, middle, m - own), (middle, end, own, m)]
        raise AssertionError("a table holds a value that no chain gives")


def solve_compat(
    space: StateSpace, cluster: PipelineCluster, options: PartitionOptions
) -> tuple[float, list[Span]]:
    """Bottleneck seconds per minibatch and the stages, as found by the public optimizer.

    Raises:
        InfeasibleError: no partition satisfies its memory count, or a straight pipeline has more workers than
            the graph has states.
    """
    levels = _tables(space, cluster, options)
    bottleneck = float(levels[-1].tables[-1][0, -1])
    if not math.isfinite(bottleneck):
        raise _infeasible(space, cluster, options)
    return bottleneck, _spans(space, levels)


def data_parallel_compat(space: StateSpace, cluster: PipelineCluster) -> float:
    """Seconds per minibatch of plain data parallelism over all workers, by the same formulas."""
    time, inner = float(space.compute_s[-1]), 1
    for count, bandwidth in zip(cluster.workers, cluster.bandwidth_bytes_per_s, strict=True):
        sync = 4 * (count - 1) * float(space.parameter_bytes[-1]) / (bandwidth * count) / inner
        time, inner = (time + sync) / count, count
    return time


class _Stages:
    """Differences between any two states in topological order, comparable or not, as published."""

    def __init__(self, space: StateSpace) -> None:
        size = space.count + 1
        self.upper = np.triu(np.ones((size, size), dtype=bool), 1)
        self.compute_s = self._differences(space.compute_s)
        self.parameter_bytes = self._differences(space.parameter_bytes)
        self.memory_bytes = self._differences(space.activation_bytes + space.parameter_bytes)
        self.allowed = space.before & self.upper
        self.allowed[0] = False
        self.received_bytes = space.output_bytes[:, None]
        self.sent_bytes = space.output_bytes[None, :].copy()
        self.sent_bytes[0, -1] = 0.0

    def _differences(self, column: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(self.upper, column[None, :] - column[:, None], 0.0)


def _time_costs(
    stages: _Stages,
    inside: NDArray[np.float64],
    count: int,
    inner: int,
    bandwidth_bytes_per_s: float,
    options: PartitionOptions,
    limit_bytes: float | None,
) -> tuple[StageCost, StageCost]:
    """Seconds per minibatch of a stage that stands alone, and of one that follows others."""

    def within(m: int, own: int) -> NDArray[np.bool_] | bool:
        return (
            True if limit_bytes is None else math.ceil((count - m) / own) * stages.memory_bytes <= limit_bytes
        )

    def alone(m: int, own: int) -> NDArray[np.float64]:
        if options.straight and own > 1:
            return np.full_like(inside, np.inf)
        cost = (inside + 4 * (own - 1) * stages.parameter_bytes / (bandwidth_bytes_per_s * own) / inner) / own
        return np.where(within(m, own), cost, np.inf)

    def last(m: int, own: int) -> NDArray[np.float64]:
        cost = (inside + 4 * (own - 1) * stages.parameter_bytes / (bandwidth_bytes_per_s * own)) / own
        ratio = options.activation_compression_ratio
        if ratio is not None:
            np.maximum(cost, 2.0 * stages.received_bytes / (bandwidth_bytes_per_s * own) / ratio, out=cost)
            np.maximum(cost, 2.0 * stages.sent_bytes / (bandwidth_bytes_per_s * own) / ratio, out=cost)
        return np.where(stages.allowed & within(m, own), cost, np.inf)

    return alone, last


def _memory_costs(
    stages: _Stages, inside: NDArray[np.float64], count: int, options: PartitionOptions
) -> tuple[StageCost, StageCost]:
    """The same for bytes, as counted for the memory limit."""

    def alone(m: int, own: int) -> NDArray[np.float64]:
        if options.straight and own > 1:
            return np.full_like(inside, np.inf)
        return np.maximum(inside, math.ceil((count - m) / own) * stages.memory_bytes)

    def last(m: int, own: int) -> NDArray[np.float64]:
        return np.where(stages.allowed, alone(m, own), np.inf)

    return alone, last


def _tables(
    space: StateSpace, cluster: PipelineCluster, options: PartitionOptions, of_memory: bool = False
) -> list[_Level]:
    stages = _Stages(space)
    size = space.count + 1
    inside = np.where(stages.upper, 0.0 if of_memory else stages.compute_s, np.inf)
    levels: list[_Level] = []
    inner = 1
    for number, count in enumerate(cluster.workers, start=1):
        outermost = number == len(cluster.workers)
        if of_memory:
            alone, last = _memory_costs(stages, inside, count, options)
        else:
            bandwidth = cluster.bandwidth_bytes_per_s[number - 1]
            alone, last = _time_costs(stages, inside, count, inner, bandwidth, options, cluster.memory_bytes)
        level = _Level(count, options, alone, last, [np.empty((0, 0))])
        level.solve(1 if outermost else size - 1)
        levels.append(level)
        # As published, only the size of the last level is carried on, not the product of all.
        inner = count
        if not outermost:
            inside = np.full((size, size), np.inf)
            inside[:-1] = level.tables[-1]
    return levels


def _spans(space: StateSpace, levels: list[_Level]) -> list[Span]:
    held = space.activation_bytes + space.parameter_bytes

    def open_level(
        depth: int, start: int, end: int, replicas: tuple[int, ...], place: tuple[int, ...]
    ) -> list[Span]:
        level = levels[depth]
        spans = []
        for number, (a, b, own, m) in enumerate(level.trace(start, end, level.workers)):
            here = (*place, number)
            if depth:
                spans += open_level(depth - 1, a, b, (own, *replicas), here)
            else:
                versions = math.ceil((level.workers - m) / own)
                spans.append(
                    Span(a, b, (own, *replicas), versions, versions * float(held[b] - held[a]), here)
                )
        return spans

    return open_level(len(levels) - 1, 0, space.count, (), ())


def _infeasible(space: StateSpace, cluster: PipelineCluster, options: PartitionOptions) -> InfeasibleError:
    levels = _tables(space, cluster, options, of_memory=True)
    if cluster.memory_bytes is None or not math.isfinite(levels[-1].tables[-1][0, -1]):
        return InfeasibleError(
            "a straight pipeline needs a stage for each worker",
            expected=f"at most as many workers in a row as {space.name} has states ({space.count})",
            got=" x ".join(map(str, cluster.workers)),
            hint="use fewer workers, allow replicated stages, or leave workers idle",
        )
    return shortage(space, _spans(space, levels), cluster.memory_bytes)
