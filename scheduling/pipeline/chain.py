"""The partition of a chain of layers with the lowest bottleneck, without a table over all ranges.

Partitions and costs are those of `optimal`, which fills matrices over all ranges of states. In a chain,
workers that can compute boundaries `a` to `c` within a bound can also compute `a` to `b < c`: the last stage
is shortened, or its workers stay idle. So for a given bound it is enough to know, from the last boundary
backwards, how early the stages of `k` workers can begin, and the lowest bound is found by bisection. Two
stages that meet at a boundary both pay for the transfer there, each over its own links; hence there is one
earliest start for each width of the preceding stage.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from scheduling.pipeline.cluster import PartitionOptions, PipelineCluster, Span

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scheduling.pipeline.states import StateSpace

# Bisection ends when no partition is better by more than this relative amount.
TOLERANCE = 1e-13
# Relative margin for reaching a value again, because the remainder for an inner level is rounded.
_ROUNDING = 1 + 1e-12
_NEAR = 1e-4


@dataclass(frozen=True, slots=True)
class _Stage:
    """Boundaries, members, later workers for each of them, and the next stage in the same group."""

    start: int
    end: int
    own: int
    behind: int
    following: _Stage | None


class ChainSearch:
    """Lowest bottleneck of a chain on any number of levels; `limit_bytes` is the memory of a worker."""

    def __init__(self, space: StateSpace, cluster: PipelineCluster, options: PartitionOptions) -> None:
        self.space, self.cluster, self.options = space, cluster, options
        self.limit_bytes = math.inf if cluster.memory_bytes is None else cluster.memory_bytes
        self.levels = len(cluster.workers)
        self._compute: list[float] = space.compute_s.tolist()
        self._parameters: list[float] = space.parameter_bytes.tolist()
        self._moving_s = self._transfers()
        self._works: dict[int, list[float]] = {}
        self._helds: dict[int, list[float]] = {}

    def solve(self) -> tuple[float, list[Span]]:
        """The lowest bottleneck in seconds and its stages; infinity and none if nothing fits the memory."""
        whole = 0, self.space.count
        bound_s = self._least_s(self.levels, *whole, 0) * _ROUNDING
        stage = self._stages(self.levels, *whole, bound_s, 0) if math.isfinite(bound_s) else None
        return (math.inf, []) if stage is None else self._open(self.levels, stage, bound_s, refine=True)

    def solve_memory(self) -> tuple[float, list[Span]]:
        """The lowest peak memory of any worker in bytes, regardless of time, and the stages."""

        def attempt(limit_bytes: float) -> float | None:
            self.limit_bytes = limit_bytes
            spans = self._any()
            return max(span.memory_bytes for span in spans) if spans else None

        self.limit_bytes = least_bytes = bisect_least(attempt)
        return least_bytes, self._any()

    def _any(self) -> list[Span]:
        stage = self._stages(self.levels, 0, self.space.count, math.inf, 0)
        return [] if stage is None else self._open(self.levels, stage, math.inf)[1]

    def _least_s(self, level: int, start: int, end: int, after: int) -> float:
        """Lowest bottleneck of one group of `level` on these boundaries.

        Infinity if nothing fits the memory.
        """

        def attempt(bound_s: float) -> float | None:
            stage = self._stages(level, start, end, bound_s, after)
            return None if stage is None else self._open(level, stage, bound_s)[0]

        return bisect_least(attempt)

    def _open(
        self, level: int, stage: _Stage, bound_s: float, refine: bool = False
    ) -> tuple[float, list[Span]]:
        """Bottleneck and stages of a group's chain.

        With `refine`, the inside of each stage at its own optimum.
        """
        worst_s, spans, number, first = 0.0, [], 0, True
        link: _Stage | None = stage
        while link is not None:
            if level == 1:
                inside_s = self._compute[link.end] - self._compute[link.start]
                memory = float(self.space.memory_bytes(link.start, link.end, 1 + link.behind))
                inner = [Span(link.start, link.end, (), 1 + link.behind, memory)]
            else:
                inner_bound_s = self._inner_bound_s(level, link.start, link.end, link.own, bound_s)
                if refine:
                    inner_bound_s = _ROUNDING * self._least_s(level - 1, link.start, link.end, link.behind)
                inner_stage = self._stages(level - 1, link.start, link.end, inner_bound_s, link.behind)
                assert inner_stage is not None
                inside_s, inner = self._open(level - 1, inner_stage, inner_bound_s, refine)
            spans += [
                replace(span, replicas=(*span.replicas, link.own), place=(number, *span.place))
                for span in inner
            ]
            cost_s = self._stage_s(level, inside_s, link.start, link.end, link.own)
            moving_s = self._moving_s[level - 1]
            if moving_s is not None and not first:
                cost_s = max(cost_s, float(moving_s[link.own][link.start]))
            if moving_s is not None and link.following is not None:
                cost_s = max(cost_s, float(moving_s[link.own][link.end]))
            worst_s, number, first, link = max(worst_s, cost_s), number + 1, False, link.following
        return worst_s, spans

    def _stages(self, level: int, start: int, end: int, bound_s: float, after: int) -> _Stage | None:
        """First stage of a group of `level` on these boundaries.

        It is within the bound, and has the fewest members.
        """
        reached, ends = self._search(level, end, bound_s, after, start)
        return self._chain(level, end, bound_s, after, start, ends) if reached == start else None

    def _search(
        self, level: int, end: int, bound_s: float, after: int, floor: int
    ) -> tuple[int, list[list[int]]]:
        """First boundary from `floor` on at which a group of `level` can begin to compute the rest up to
        `end`.

        It is `end` if there is none. Second: where a preceding stage may end, by [members behind it][its members];
        `end + 1` if nowhere. `after` is the number of later workers outside the group, for each group.
        """
        count, nowhere = self.cluster.workers[level - 1], end + 1
        ends = [[end] * (count + 1)]
        earliest = end
        for used in range(1, count + 1):
            row = [nowhere] * (count + 1)
            least_stop = nowhere
            for own in (1,) if self.options.straight else range(used, 0, -1):
                stop = ends[used - own][own]
                # A stage of more members that ends no later begins no later. One that is not replicated has no
                # all-reduce, and is always tried.
                if stop == nowhere or (own > 1 and stop >= least_stop):
                    continue
                if own > 1:
                    least_stop = stop
                behind = self.cluster.behind(level, after, used, own)
                start = self._stage_begins(level, stop, bound_s, behind, own, floor)
                if start == stop:
                    continue
                if start == floor:
                    return floor, ends
                earliest = min(earliest, start)
                most = 1 if self.options.straight else count - used
                self._lower(row, most, level, start, stop, bound_s, behind, own)
            ends.append(row)
        return earliest, ends

    def _lower(
        self,
        row: list[int],
        before: int,
        level: int,
        start: int,
        stop: int,
        bound_s: float,
        behind: int,
        own: int,
    ) -> None:
        """Lower the ends in `row` of preceding stages of up to `before` members to those that this stage allows.

        The ends are never later for more members, because their transfer is faster.
        """
        moving_s, begins = self._moving_s[level - 1], start
        while before:
            widest = min(before, own)
            found = self._admissible(level, begins, stop, bound_s, behind, own, widest)
            if found is None:
                return
            begins, least = found, 1
            if moving_s is not None:
                slow = range(1, widest)
                least = slow.start + bisect_left(slow, True, key=lambda b: moving_s[b][found] <= bound_s)
            changed = range(least, before + 1)
            last = least + bisect_left(changed, True, key=lambda b: row[b] <= found)
            row[least:last] = [begins] * (last - least)
            before = least - 1

    def _chain(
        self, level: int, end: int, bound_s: float, after: int, floor: int, ends: list[list[int]]
    ) -> _Stage:
        """The stages of a search that reached `floor`, each with the fewest members possible."""
        found: list[tuple[int, int, int, int]] = []
        target, used, before = floor, len(ends), None
        while target < end:
            for own in range(1, used + 1):
                stop = ends[used - own][own]
                if stop > end:
                    continue
                behind = self.cluster.behind(level, after, used, own)
                start = self._stage_begins(level, stop, bound_s, behind, own, floor)
                if before is not None and start < stop:
                    begins = self._admissible(level, start, stop, bound_s, behind, own, min(before, own))
                    start = stop if begins is None else begins
                if start == target < stop:
                    break
            else:
                raise AssertionError("no stage reaches what the search reached")
            found.append((target, stop, own, behind))
            target, used, before = stop, used - own, own
        stage: _Stage | None = None
        for first, stop, own, behind in reversed(found):
            stage = _Stage(first, stop, own, behind, stage)
        assert stage is not None
        return stage

    def _stage_begins(self, level: int, stop: int, bound_s: float, behind: int, own: int, floor: int) -> int:
        """First boundary from `floor` on at which a stage can begin, ignoring transfers.

        `stop` if there is none.
        """
        if level == 1:
            start = self._first(
                self._work(own),
                stop,
                own * bound_s,
                floor,
                lambda s: self._stage_s(1, self._compute[stop] - self._compute[s], s, stop, own) <= bound_s,
            )
            return start if math.isinf(self.limit_bytes) else self._fitting(start, stop, 1 + behind)

        def begins(start: int) -> bool:
            inner_bound_s = self._inner_bound_s(level, start, stop, own, bound_s)
            return self._search(level - 1, stop, inner_bound_s, behind, start)[0] == start

        # First without the all-reduce, whose time depends on where the stage begins.
        start = self._search(level - 1, stop, own * bound_s, behind, floor)[0]
        if own == 1 or start == stop or begins(start):
            return start
        if self.space.inputs_only and math.isfinite(self.limit_bytes):
            # The kept input may need more memory at a later boundary.
            return next((s for s in range(start + 1, stop) if begins(s)), stop)
        later = range(start + 1, stop)
        return later.start + bisect_left(later, True, key=begins)

    def _fitting(self, start: int, stop: int, versions: int) -> int:
        """First boundary from `start` on for which one worker's memory is sufficient."""

        def fits(boundary: int) -> bool:
            return float(self.space.memory_bytes(boundary, stop, versions)) <= self.limit_bytes

        if not self.space.inputs_only:
            return self._first(self._held(versions), stop, self.limit_bytes, start, fits)
        enough = self.space.memory_bytes(np.arange(start, stop), stop, versions) <= self.limit_bytes
        return start + int(enough.argmax()) if enough.any() else stop

    def _admissible(
        self, level: int, start: int, stop: int, bound_s: float, behind: int, own: int, before: int
    ) -> int | None:
        """First boundary from `start` on at which the stage can begin and receive from `before` members."""
        moving_s = self._moving_s[level - 1]
        if moving_s is None:
            return start
        while start < stop:
            if moving_s[before][start] <= bound_s:
                return start
            allowed = moving_s[before][start:stop] <= bound_s
            skipped = int(allowed.argmax())
            if not allowed[skipped]:
                return None
            start = self._stage_begins(level, stop, bound_s, behind, own, start + skipped)
        return None

    def _stage_s(self, level: int, inside_s: float, start: int, end: int, own: int) -> float:
        """Seconds per minibatch of a stage of `own` members, with a ring all-reduce, without transfers."""
        return (inside_s + self._sum_s(level, start, end, own)) / own

    def _inner_bound_s(self, level: int, start: int, end: int, own: int, bound_s: float) -> float:
        return own * bound_s - self._sum_s(level, start, end, own)

    def _sum_s(self, level: int, start: int, end: int, own: int) -> float:
        return self._ring_s_per_byte(level, own) * (self._parameters[end] - self._parameters[start])

    def _ring_s_per_byte(self, level: int, own: int) -> float:
        bandwidth = self.cluster.bandwidth_bytes_per_s[level - 1] * self.cluster.inside(level - 1)
        return 2 * (own - 1) / own / bandwidth

    def _transfers(self) -> list[list[NDArray[np.float64]] | None]:
        """By level and members: [n + 1] seconds of a stage's transfer at each boundary."""
        ratio = self.options.activation_compression_ratio
        if ratio is None:
            return [None] * self.levels
        moved = 2.0 * self.space.output_bytes / ratio
        moved[[0, -1]] = 0.0
        return [
            [moved / (bandwidth * max(own, 1)) for own in range(count + 1)]
            for count, bandwidth in zip(self.cluster.workers, self.cluster.bandwidth_bytes_per_s, strict=True)
        ]

    def _work(self, own: int) -> list[float]:
        """[n + 1] seconds of one worker's stage up to each boundary, its ring included, as if it began at the
        first."""
        if own not in self._works:
            sums: NDArray[np.float64] = (
                self.space.compute_s + self._ring_s_per_byte(1, own) * self.space.parameter_bytes
            )
            self._works[own] = sums.tolist()
        return self._works[own]

    def _held(self, versions: int) -> list[float]:
        """[n + 1] bytes of one worker up to each boundary."""
        if versions not in self._helds:
            every = np.arange(self.space.count + 1)
            self._helds[versions] = self.space.memory_bytes(np.zeros_like(every), every, versions).tolist()
        return self._helds[versions]

    @staticmethod
    def _first(sums: list[float], stop: int, bound: float, floor: int, fits: Callable[[int], bool]) -> int:
        """First boundary from `floor` on that `fits`.

        The difference of sums to `stop` is within rounding of the bound.
        """
        start = bisect_left(sums, sums[stop] - bound, floor, stop)
        while start > floor and fits(start - 1):
            start -= 1
        while start < stop and not fits(start):
            start += 1
        return start


def bisect_least(attempt: Callable[[float], float | None]) -> float:
    """The lowest value that `attempt` reaches: given a bound, it returns a value up to that bound, or None.

    Infinity if it returns None without a bound.
    """
    reached = attempt(math.inf)
    if reached is None:
        return math.inf
    low, high, halve = 0.0, reached, True
    while high - low > TOLERANCE * high:
        # Values are discrete: once close, every other attempt is just below the last value, and ends the
        # search if it fails.
        halve = not halve or high - low > _NEAR * high
        bound = (low + high) / 2 if halve else high * (1 - TOLERANCE)
        reached = attempt(bound)
        if reached is None:
            low = bound
        else:
            high = min(bound, reached)
    return high
