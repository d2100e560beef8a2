"""The partition of a model into pipeline stages with the lowest bottleneck.

Memory is counted as the runtime uses it. The search is that of Narayanan et al., SOSP 2019, section 3.1, with
the errors of its public code corrected:

* A stage's workers hold `ceil(R / r)` minibatches, where `R` is the number of workers of this stage and all
  later ones, and `r` its replicas. The search runs from the last stage to the first, so `R` is known exactly,
  with or without idle workers.
* Replicas synchronise by a ring: `2 (r - 1) / r` times the parameters per replica, not twice that.
* A level's links are shared by all workers inside a member, and for every stage.
* Workers that would not lower the bottleneck stay idle.
* A stage spans comparable states only, so it is charged for exactly what it computes.
* Every stage pays for its inputs and outputs, including the first, if transfers count at all.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from profiling.errors import InfeasibleError
from scheduling.pipeline.chain import ChainSearch
from scheduling.pipeline.cluster import PartitionOptions, PipelineCluster, Span, shortage
from scheduling.pipeline.minmax import chain_bottleneck
from scheduling.pipeline.states import MAX_BRANCHING_STATES, too_many

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scheduling.pipeline.states import StateSpace


# Rows of a matrix computed at a time, if only one column is needed.
_ROWS = 256


class Search:
    """Best chains of stages for every range of states, level by level.

    `memory_only` minimises the largest memory of any worker instead of time.
    """

    def __init__(
        self,
        space: StateSpace,
        cluster: PipelineCluster,
        options: PartitionOptions,
        memory_only: bool = False,
        idle: bool = True,
    ) -> None:
        self.cluster, self.options, self.memory_only, self.idle = cluster, options, memory_only, idle
        self.levels = len(cluster.workers)
        self.space, self.subset = space, space.subset
        self.compute = self._differences(space.compute_s)
        self.parameters = np.where(self.subset, self._differences(space.parameter_bytes), 0.0)
        self.moved = space.output_bytes.copy()
        self.moved[[0, -1]] = 0.0
        self._groups: dict[tuple[int, int], NDArray[np.float64]] = {}
        self._tables: dict[tuple[int, int], list[NDArray[np.float64]]] = {}

    def solve(self) -> tuple[float, list[Span]]:
        """The lowest bottleneck and its stages; infinity and none if there is no partition."""
        tables = self.tables(self.levels, 0)
        counts = range(1, len(tables)) if self.idle else [len(tables) - 1]
        best = min(float(tables[r][0, 0]) for r in counts)
        if not math.isfinite(best):
            return best, []
        used = next(r for r in counts if float(tables[r][0, 0]) == best)
        return best, self._open(self.levels, 0, 0, len(self.moved) - 1, used, (), (0,))

    def group(self, level: int, after: int, rows: slice = slice(None)) -> NDArray[np.float64]:
        """[rows, n + 1] bottleneck of one group of `level` (0: one worker) that computes a range of states.

        `after` is the number of later workers outside the group, per group.
        """
        unlimited = self.cluster.memory_bytes is None and not self.memory_only
        if unlimited:
            after = 0
        if (level, after) in self._groups:
            return self._groups[level, after][rows]
        if level == 0:
            if unlimited:
                return self.compute[rows]
            index = np.arange(len(self.moved))
            memory = self._memory_bytes(index[rows, None], index[None, :], after)
            limit = self.cluster.memory_bytes
            if self.memory_only or limit is None:
                result = memory
            else:
                result = np.where(memory <= limit, self.compute[rows], np.inf)
            if len(result) < len(self.moved):
                return result
        else:
            tables = self.tables(level, after)
            result = np.full_like(self.compute, np.inf)
            for r in range(1, len(tables)) if self.idle else [len(tables) - 1]:
                np.minimum(result, self._entered(level, after, tables, r), out=result)
        self._groups[level, after] = result
        return result[rows]

    def _memory_bytes(
        self, start: NDArray[np.int64], end: NDArray[np.int64], after: int
    ) -> NDArray[np.float64]:
        """Memory of a worker that computes the states between `start` and `end`, with `after` later
        workers."""
        once, twice = (self.space.memory_bytes(start, end, versions) for versions in (1, 2))
        return np.where(self.subset[start, end], once + after * (twice - once), np.inf)

    def tables(self, level: int, after: int) -> list[NDArray[np.float64]]:
        """For r = 0, 1, ... members: bottleneck of a range that follows another stage and uses r members.

        [n + 1, n + 1] over (start, end); on the outermost level [n + 1, 1], because only the whole is needed
        there.
        """
        if (level, after) not in self._tables:
            outermost, size = level == self.levels, len(self.moved)
            columns = slice(-1, None) if outermost else slice(None)
            # With one column, rows are independent, and matrices of all rows need not be held.
            blocks = [slice(k, k + _ROWS) for k in range(0, size, _ROWS)] if outermost else [slice(None)]
            tables = [np.empty((0, 0))]
            for r in range(1, self.cluster.workers[level - 1] + 1):
                best = np.full_like(self.compute[:, columns], np.inf)
                for own in self._own(r):
                    for rows in blocks:
                        cost = self.stage(level, after, r, own, rows=rows)
                        cost = cost[:, columns] if own == r else chain_bottleneck(cost, tables[r - own])
                        np.minimum(best[rows], cost, out=best[rows])
                tables.append(best)
            self._tables[level, after] = tables
        return self._tables[level, after]

    def stage(
        self, level: int, after: int, r: int, own: int, first: bool = False, rows: slice = slice(None)
    ) -> NDArray[np.float64]:
        """[rows, n + 1] cost of a stage of `own` members with `r - own` members behind it in its group."""
        members = self.cluster.inside(level - 1)
        inside = self.group(level - 1, self.cluster.behind(level, after, r, own), rows)
        if self.memory_only:
            return inside
        bandwidth = self.cluster.bandwidth_bytes_per_s[level - 1]
        cost = (inside + 2 * (own - 1) / own * self.parameters[rows] / (bandwidth * members)) / own
        if self.options.activation_compression_ratio is not None:
            moving = 2.0 * self.moved / (bandwidth * own * self.options.activation_compression_ratio)
            if not first:
                cost = np.maximum(cost, moving[rows, None])
            if own < r:
                cost = np.maximum(cost, moving[None, :])
            cost[~self.subset[rows]] = np.inf
        return cost

    def _entered(
        self,
        level: int,
        after: int,
        tables: list[NDArray[np.float64]],
        r: int,
        rows: slice = slice(None),
    ) -> NDArray[np.float64]:
        """`tables[r]` for a range whose input comes from outside the group, over the outer level's links."""
        if self.options.activation_compression_ratio is None or self.memory_only:
            return tables[r][rows]
        best = np.full_like(self.compute[rows], np.inf)
        for own in self._own(r):
            cost = self.stage(level, after, r, own, True, rows)
            np.minimum(best, cost if own == r else chain_bottleneck(cost, tables[r - own]), out=best)
        return best

    def _open(
        self,
        level: int,
        after: int,
        start: int,
        end: int,
        r: int,
        outer: tuple[int, ...],
        place: tuple[int, ...],
    ) -> list[Span]:
        """The stages behind a value of `tables(level, after)[r]`; `place` is that of the first."""
        tables = self.tables(level, after)
        column = 0 if level == self.levels else end
        entering = place[-1] == 0 and level < self.levels
        row = slice(start, start + 1)
        value = (self._entered(level, after, tables, r, row) if entering else tables[r][row])[0, column]
        for own in reversed(self._own(r)):
            cost = self.stage(level, after, r, own, entering, row)[0]
            if own == r:
                if cost[end] == value:
                    return self._inner(level, after, start, end, r, own, outer, place)
                continue
            ends = np.flatnonzero(np.maximum(cost, tables[r - own][:, column]) == value)
            if ends.size:
                middle = int(ends[0])
                return [
                    *self._inner(level, after, start, middle, r, own, outer, place),
                    *self._open(level, after, middle, end, r - own, outer, (*place[:-1], place[-1] + 1)),
                ]
        raise AssertionError("a table holds a value that no chain gives")

    def _inner(
        self,
        level: int,
        after: int,
        start: int,
        end: int,
        r: int,
        own: int,
        outer: tuple[int, ...],
        place: tuple[int, ...],
    ) -> list[Span]:
        """The stages inside one stage of `level`."""
        behind, replicas = self.cluster.behind(level, after, r, own), (own, *outer)
        if level == 1:
            memory = float(self._memory_bytes(np.array(start), np.array(end), behind))
            return [Span(start, end, replicas, 1 + behind, memory, place)]
        if self.cluster.memory_bytes is None and not self.memory_only:
            behind = 0
        value = self.group(level - 1, behind)[start, end]
        tables = self.tables(level - 1, behind)
        counts = range(1, len(tables)) if self.idle else [len(tables) - 1]
        row = slice(start, start + 1)
        used = next(x for x in counts if self._entered(level - 1, behind, tables, x, row)[0, end] == value)
        return self._open(level - 1, behind, start, end, used, replicas, (*place, 0))

    def _own(self, r: int) -> range:
        return range(1, 2 if self.options.straight else r + 1)

    def _differences(self, column: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(self.subset, column[None, :] - column[:, None], np.inf)


def solve_optimal(
    space: StateSpace, cluster: PipelineCluster, options: PartitionOptions, idle: bool = True
) -> tuple[float, list[Span]]:
    """Bottleneck seconds per minibatch and the stages, first to last.

    `idle=False` requires every worker to be used.

    Raises:
        InfeasibleError: no partition fits the memory, with the stage that is short and by how much; or
            (without idle workers) a straight pipeline has more workers than the graph has states.
    """
    # A chain with idle workers allowed needs no matrices over its states.
    chain = ChainSearch(space, cluster, options) if idle and space.is_chain else None
    if chain is None and space.count > MAX_BRANCHING_STATES:
        raise too_many(space.name, MAX_BRANCHING_STATES)
    bottleneck, spans = (chain or Search(space, cluster, options, idle=idle)).solve()
    if math.isfinite(bottleneck):
        return bottleneck, recount(space, spans)
    if chain is not None:
        least, spans = chain.solve_memory()
    else:
        least, spans = Search(space, cluster, options, memory_only=True, idle=idle).solve()
    if cluster.memory_bytes is None or not math.isfinite(least):
        raise InfeasibleError(
            "a pipeline without replicas needs a stage for each worker",
            expected=f"at most as many workers in a row as {space.name} has states ({space.count})",
            got=" x ".join(map(str, cluster.workers)),
            hint="use fewer workers, allow replicated stages, or leave workers idle",
        )
    raise shortage(space, spans, cluster.memory_bytes)


def recount(space: StateSpace, spans: list[Span]) -> list[Span]:
    """Recompute minibatches in flight and memory from the workers that the plan actually uses."""
    result: list[Span] = []
    behind = 0
    for span in reversed(spans):
        replicas = math.prod(span.replicas)
        behind += replicas
        versions = -(-behind // replicas)
        memory = float(space.memory_bytes(span.start, span.end, versions))
        result.append(Span(span.start, span.end, span.replicas, versions, memory, span.place))
    return result[::-1]


def data_parallel(space: StateSpace, cluster: PipelineCluster) -> float:
    """Seconds per minibatch of data parallelism over all workers, with ring all-reduces level by level."""
    time = float(space.compute_s[-1])
    for level, (count, bandwidth) in enumerate(
        zip(cluster.workers, cluster.bandwidth_bytes_per_s, strict=True)
    ):
        sync = 2 * (count - 1) / count * float(space.parameter_bytes[-1])
        time = (time + sync / (bandwidth * cluster.inside(level))) / count
    return time
