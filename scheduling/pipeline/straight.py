"""Pipelines with a flush: number of stages, number of copies of the pipeline, and where to cut."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from profiling.errors import InfeasibleError
from scheduling.pipeline.chain_cut import ChainCut, part_bytes
from scheduling.pipeline.cluster import PipelineCluster, Span
from scheduling.pipeline.schedules import Action, worker_orders
from scheduling.pipeline.stage_costs import send_s, shared_level, stage_times
from scheduling.pipeline.timeline import Timeline, fullest, peak_held, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from scheduling.pipeline.states import StateSpace

MAX_DEPTH = 64
"""Pipelines deeper than this are not tried."""
# Share of the slowest part's time from which a transfer there and back is considered for the cut.
_NOTICED = 0.1


@dataclass(frozen=True, slots=True)
class Straight:
    """A pipeline with a flush and its copies.

    Attributes:
        bounds: boundaries of the parts.
        send_s: per part, seconds of one microbatch's transfer to the next.
        step_time_s: of the timeline, followed by the all-reduce over the copies.
        in_flight, memory_bytes: per worker of a copy.
    """

    bounds: list[int]
    send_s: list[float]
    copies: int
    step_time_s: float
    timeline: Timeline
    in_flight: list[int]
    memory_bytes: list[float]


@dataclass(frozen=True, slots=True)
class _Row:
    """The workers of one copy.

    Attributes:
        kept: per part, microbatches that its worker holds at its peak.
        recomputed: per part, most microbatches between their backward pass, which recomputes activations, and
            the last use of these.
    """

    microbatches: int
    orders: list[list[Action]]
    kept: list[int]
    recomputed: list[int]

    @classmethod
    def of(cls, schedule: str, depth: int, microbatches: int, chunks: int) -> _Row:
        orders = worker_orders(schedule, depth, microbatches, chunks=chunks)
        kept, recomputed = [0] * (depth * chunks), [1] * (depth * chunks)
        for worker, order in enumerate(orders):
            for part, count in fullest(order).items():
                kept[part] = count
            if schedule == "zb-h1":
                recomputed[worker] = int(peak_held(order, [0.0] * depth, [1.0] * depth))
        return cls(microbatches, orders, kept, recomputed)

    @property
    def depth(self) -> int:
        return len(self.orders)

    @property
    def chunks(self) -> int:
        return len(self.kept) // self.depth

    def parts(self, worker: int) -> range:
        return range(worker, len(self.kept), self.depth)

    def in_flight(self, worker: int) -> int:
        return sum(self.kept[part] for part in self.parts(worker))

    def sums(self, column: NDArray[np.float64], bounds: list[int]) -> list[float]:
        """Sum of a column over each worker's parts."""
        return [
            sum(float(column[bounds[p + 1]] - column[bounds[p]]) for p in self.parts(worker))
            for worker in range(self.depth)
        ]

    def memory_bytes(self, space: StateSpace, bounds: list[int], share: int) -> list[float]:
        """Peak memory per worker: weights and fixed bytes once, and the microbatches held at the peak."""
        activations = np.diff(space.activation_bytes[bounds]) / share
        inputs = space.output_bytes[bounds[:-1]] / share
        kept, again = (inputs, activations) if space.inputs_only else (activations, 0 * activations)
        once = space.parameter_bytes + (0.0 if space.fixed_bytes is None else space.fixed_bytes)
        return [
            held + peak_held(order, kept.tolist(), again.tolist())
            for held, order in zip(self.sums(once, bounds), self.orders, strict=True)
        ]

    def cut(
        self,
        space: StateSpace,
        share: int,
        limit_bytes: float,
        s_per_byte: float = 0.0,
        in_turn: bool = False,
    ) -> list[int] | None:
        """Boundaries that minimise the slowest part, or the transfer to the next at `s_per_byte` if that takes
        longer, with no part over its share of the limit; or else the largest part.

        With `in_turn`, a part and its transfers, there and back, count together.

        Several parts of a worker are assumed to share the limit equally, because their total is known only
        after all are cut.
        """
        limit_bytes /= self.chunks
        send_s = s_per_byte * space.output_bytes
        send_s[[0, -1]] = 0.0
        if space.is_chain:
            chain = ChainCut(space, self.kept, share, self.recomputed, send_s)
            return chain.by_time(limit_bytes, in_turn) or chain.by_memory()
        return _cut_branching(space, self.kept, self.recomputed, share, limit_bytes, send_s, in_turn)


def best_copies(
    space: StateSpace,
    cluster: PipelineCluster,
    schedule: str,
    microbatches: int,
    chunks: int,
    allow_idle: bool,
    batch_size: int | None,
    depth: int | None = None,
) -> Straight:
    """The fastest pipeline over all depths (or the one given) that the workers, the cuts and the batch allow.

    A microbatch has at least one sample.

    Raises:
        InfeasibleError: nothing fits the memory, or no depth is possible.
    """
    best: Straight | None = None
    short: tuple[float, str] | None = None
    wanted = depth
    deepest = min(cluster.total, MAX_DEPTH, space.count)
    for depth in range(1, deepest + 1):
        if wanted not in (None, depth) or depth * chunks > space.count:
            continue
        if schedule == "interleaved" and microbatches % depth:
            continue
        most = cluster.total // depth if batch_size is None else batch_size // microbatches
        counts = _copies(cluster, depth, min(most, cluster.total // depth), allow_idle)
        row = _Row.of(schedule, depth, microbatches, chunks) if counts else None
        fastest = row.cut(space, 1, math.inf) if row else None
        if row is None or fastest is None:
            continue
        for copies in counts:
            outcome = _with_copies(space, cluster, row, fastest, copies, best)
            if isinstance(outcome, Straight):
                best = outcome
            elif outcome is not None and (short is None or outcome[0] < short[0]):
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
        expected=f"a depth of 1 to {deepest}, a batch with a sample for each microbatch, a cut for each stage"
        + (", microbatches in multiples of the depth" if schedule == "interleaved" else ""),
        got=f"depth {wanted or 'any'}, batch {batch_size}, {microbatches} microbatches, {space.count} places to cut",
    )


def _copies(cluster: PipelineCluster, depth: int, most: int, allow_idle: bool) -> list[int]:
    """Numbers of copies to try, largest first.

    On one level without a memory limit, more copies of the same cut are either always faster or, if summing
    gradients takes longer than computing, always slower. Under a limit the fewest that fit may be the fastest. On
    several levels, the number decides which transfers leave a group, so any may be.
    """
    if not allow_idle:
        return [most] if most * depth == cluster.total else []
    ends = len(cluster.workers) == 1 and cluster.memory_bytes is None
    counts = (most, 1) if ends else range(most, 0, -1)
    return sorted({count for count in counts if 1 <= count <= most}, reverse=True)


def _least_s(
    space: StateSpace, cluster: PipelineCluster, row: _Row, fastest: list[int], copies: int
) -> float:
    """Lower bound on the step time of any cut: that of its slowest part, and of the largest sum of gradients."""
    slowest_s = float(np.diff(space.compute_s[fastest]).max()) / copies
    level = shared_level(cluster, _devices(0, copies))
    ring = 2 * (copies - 1) / copies * float(space.parameter_bytes[-1]) / row.depth
    return slowest_s + ring / max(cluster.bandwidth_bytes_per_s[level:])


def _with_copies(
    space: StateSpace,
    cluster: PipelineCluster,
    row: _Row,
    fastest: list[int],
    copies: int,
    best: Straight | None,
) -> Straight | tuple[float, str] | None:
    """The pipeline with `copies` copies; None if it is no faster than `best`; bytes and words if it does not
    fit.

    `fastest` are the boundaries without a memory limit. If a transfer takes longer than any part, the cut is also
    sought that makes the longer of both shortest. A shorter transfer delays the step, too: few microbatches are in
    flight, so that workers wait for it. Hence also the cut that makes the slowest part with its transfers shortest.
    """
    if best is not None and _least_s(space, cluster, row, fastest, copies) >= best.step_time_s * (1 - 1e-12):
        return None
    share = copies * row.microbatches
    limit = math.inf if cluster.memory_bytes is None else cluster.memory_bytes
    bounds, needed = fastest, row.memory_bytes(space, fastest, share)
    if max(needed) > limit:
        bounds = row.cut(space, share, limit) or fastest
        needed = row.memory_bytes(space, bounds, share)
    worst = max(range(row.depth), key=lambda worker: needed[worker])
    if needed[worst] > limit:
        names = space.members(bounds[worst], bounds[worst + 1])
        return needed[worst] - limit, (
            f"even the smallest split over {row.depth} needs {needed[worst]:.4g} bytes on stage {worst + 1}"
            f" ({names[0]} to {names[-1]}, {row.in_flight(worst)} microbatches in flight), {needed[worst] - limit:.4g} too many"
        )
    atleast_s = max(row.sums(space.compute_s, bounds)) / copies + _sync_s(space, cluster, row, bounds, copies)
    if best is not None and atleast_s >= best.step_time_s * (1 - 1e-12):
        return None
    found = _timed(space, cluster, row, bounds, copies, needed)
    slow = max(range(len(row.kept)), key=found.send_s.__getitem__)
    sent_s, computed_s = found.send_s[slow], float(np.diff(space.compute_s[bounds]).max()) / share
    if 2 * sent_s > _NOTICED * computed_s:
        s_per_byte = sent_s * share / float(space.output_bytes[bounds[slow + 1]])
        for in_turn in (False, True) if sent_s > computed_s else (True,):
            there = row.cut(space, share, limit, s_per_byte, in_turn)
            if there is None or there == bounds:
                continue
            needed = row.memory_bytes(space, there, share)
            if max(needed) <= limit:
                other = _timed(space, cluster, row, there, copies, needed)
                found = min(found, other, key=lambda straight: straight.step_time_s)
    return None if best is not None and found.step_time_s >= best.step_time_s * (1 - 1e-12) else found


def _timed(
    space: StateSpace,
    cluster: PipelineCluster,
    row: _Row,
    bounds: list[int],
    copies: int,
    memory_bytes: list[float],
) -> Straight:
    """The simulated step of these boundaries."""
    share = copies * row.microbatches
    times = []
    for part in range(len(row.kept)):
        last = part == len(row.kept) - 1
        sent = 0.0 if last else float(space.output_bytes[bounds[part + 1]]) / share
        to, back = (_devices(p % row.depth, copies) for p in (part, part + 1))
        times.append(
            stage_times(
                space,
                Span(bounds[part], bounds[part + 1], (1,), 1, 0.0),
                share,
                send_s(cluster, sent, to, back),
            )
        )
    timeline = simulate(row.orders, times)
    return Straight(
        bounds,
        [part.send_s for part in times],
        copies,
        timeline.total_s + _sync_s(space, cluster, row, bounds, copies),
        timeline,
        list(timeline.peak_in_flight),
        memory_bytes,
    )


def _sync_s(space: StateSpace, cluster: PipelineCluster, row: _Row, bounds: list[int], copies: int) -> float:
    """Seconds of the longest all-reduce of a worker over the copies."""
    slowest_s = 0.0
    for worker, parameters in enumerate(row.sums(space.parameter_bytes, bounds)):
        level = shared_level(cluster, _devices(worker, copies))
        ring = 2 * (copies - 1) / copies * parameters
        slowest_s = max(slowest_s, ring / cluster.bandwidth_bytes_per_s[level])
    return slowest_s


def _devices(worker: int, copies: int) -> range:
    """Numbers of the devices on which the copies of a worker run."""
    return range(worker * copies, (worker + 1) * copies)


def _cut_branching(
    space: StateSpace,
    kept: Sequence[float],
    recomputed: Sequence[float],
    share: float,
    limit_bytes: float,
    send_s: NDArray[np.float64],
    in_turn: bool,
) -> list[int] | None:
    """Boundaries of the parts that minimise the slowest part or transfer within the memory, or else the largest
    part; with `in_turn`, the slowest part with its transfers, there and back."""
    every = np.arange(space.count + 1)

    def memory(part: int) -> NDArray[np.float64]:
        return part_bytes(space, every[:, None], every[None, :], kept[part], share, recomputed[part])

    def time(part: int) -> NDArray[np.float64]:
        allowed = space.subset & (memory(part) <= limit_bytes)
        computed = space.compute_s[None, :] - space.compute_s[:, None]
        slowest = (
            computed + 2 * (send_s[:, None] + send_s) if in_turn else np.maximum(computed, send_s[None, :])
        )
        return np.where(allowed, slowest, np.inf)

    parts = len(kept)
    return cut(time, parts) or cut(lambda part: np.where(space.subset, memory(part), np.inf), parts)


def cut(cost: Callable[[int], NDArray[np.float64]], parts: int) -> list[int] | None:
    """Boundaries 0 = b0 < b1 < ... = n of `parts` parts with the lowest maximum cost.

    `cost` gives a part's matrix.
    """
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
