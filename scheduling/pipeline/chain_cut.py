"""Cuts a chain of layers into a given number of parts, one worker each.

The slowest part, or the one with the most bytes, is minimised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from scheduling.pipeline.chain import bisect_least

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scheduling.pipeline.states import StateSpace


def part_bytes(
    space: StateSpace, start: Any, end: Any, in_flight: float, share: float, recomputed: float = 1
) -> Any:
    """Bytes of a stage: weights once (a flush needs no stash), microbatches in flight, fixed bytes.

    A microbatch is a `share`-th of the batch. A stage that keeps only its inputs also holds the activations
    of `recomputed` microbatches. `start` and `end` are boundaries, numbers or arrays.
    """
    activations, parameters = (
        column[end] - column[start] for column in (space.activation_bytes, space.parameter_bytes)
    )
    if space.inputs_only:
        kept = in_flight * space.output_bytes[start] + recomputed * activations
    else:
        kept = in_flight * activations
    total = parameters + kept / share
    return total if space.fixed_bytes is None else total + space.fixed_bytes[end] - space.fixed_bytes[start]


class ChainCut:
    """Cuts of a chain.

    Part `p` holds `in_flight[p]` microbatches, each a `share`-th of the batch (see `part_bytes`). `send_s` has
    the seconds that the whole batch takes to pass a cut at each boundary; None ignores them.
    """

    def __init__(
        self,
        space: StateSpace,
        in_flight: Sequence[float],
        share: float,
        recomputed: Sequence[float] | None = None,
        send_s: NDArray[np.float64] | None = None,
    ) -> None:
        self.space, self.in_flight, self.share, self.send_s = space, in_flight, share, send_s
        self.recomputed = recomputed or [1] * len(in_flight)

    def by_time(self, limit_bytes: float, in_turn: bool = False) -> list[int] | None:
        """Boundaries that minimise the slowest part or transfer, with no part over the limit.

        None if there are none.

        Args:
            in_turn: minimise the slowest part together with its transfers, there and back. Under a limit, this is
                not always the minimum.
        """
        if in_turn:
            return self._least(self._seconds_in_turn, limit_bytes, in_turn=True)
        return self._least(self._seconds, limit_bytes, self.send_s)

    def by_memory(self) -> list[int] | None:
        """Boundaries that minimise the largest part in bytes, regardless of time."""
        return self._least(self._bytes, math.inf)

    def _seconds(self, _: int, start: NDArray[np.intp], end: NDArray[np.intp]) -> NDArray[np.float64]:
        return self.space.compute_s[end] - self.space.compute_s[start]

    def _seconds_in_turn(
        self, part: int, start: NDArray[np.intp], end: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        seconds = self._seconds(part, start, end)
        return seconds if self.send_s is None else seconds + 2 * (self.send_s[start] + self.send_s[end])

    def _bytes(self, part: int, start: NDArray[np.intp], end: NDArray[np.intp]) -> NDArray[np.float64]:
        result: NDArray[np.float64] = part_bytes(
            self.space, start, end, self.in_flight[part], self.share, self.recomputed[part]
        )
        return result

    def _least(
        self,
        cost: Callable[[int, NDArray[np.intp], NDArray[np.intp]], NDArray[np.float64]],
        limit_bytes: float,
        at_cut: NDArray[np.float64] | None = None,
        in_turn: bool = False,
    ) -> list[int] | None:
        def attempt(bound: float) -> float | None:
            cuts = self._within(cost, bound, limit_bytes, at_cut, in_turn)
            if cuts is None:
                return None
            start, end = np.array(cuts[:-1]), np.array(cuts[1:])
            worst = max(float(cost(p, start[p], end[p])) for p in range(len(self.in_flight)))
            return worst if at_cut is None or len(start) == 1 else max(worst, float(at_cut[start[1:]].max()))

        return self._within(cost, bisect_least(attempt), limit_bytes, at_cut, in_turn)

    def _within(
        self,
        cost: Callable[[int, NDArray[np.intp], NDArray[np.intp]], NDArray[np.float64]],
        bound: float,
        limit_bytes: float,
        at_cut: NDArray[np.float64] | None,
        in_turn: bool,
    ) -> list[int] | None:
        """Boundaries with no part, and nothing `at_cut`, above the bound.

        From the last part backwards, it finds where a part may begin. Of the ends that the later parts leave
        open, the nearest is cheapest, because time and memory only grow with a part's end. Only with its transfers
        (`in_turn`), a later end may take less time; it is chosen if it fits.
        """
        begins = np.array([self.space.count])
        begins_and_ends = []
        for part in range(len(self.in_flight) - 1, -1, -1):
            starts = np.arange(1, begins[-1]) if part else np.arange(1)
            nearest = np.searchsorted(begins, starts, side="right")
            ends = begins[nearest]
            if in_turn:
                soonest = begins[self._soonest(begins)[nearest]]
                fits = self._bytes(part, starts, soonest) <= limit_bytes
                ends = np.where(fits, soonest, ends)
            allowed = cost(part, starts, ends) <= bound
            if part and at_cut is not None:
                allowed &= at_cut[starts] <= bound
            if math.isfinite(limit_bytes):
                allowed &= self._bytes(part, starts, ends) <= limit_bytes
            if not allowed.any():
                return None
            begins = starts[allowed]
            begins_and_ends.append((begins, ends[allowed]))
        bounds = [0]
        for begins, ends in reversed(begins_and_ends):
            bounds.append(int(ends[np.searchsorted(begins, bounds[-1])]))
        return bounds

    def _soonest(self, ends: NDArray[np.intp]) -> NDArray[np.intp]:
        """For each of the `ends`, the position of the one from there on with the least time up to it, with what it
        sends."""
        seconds = self.space.compute_s[ends] + (0.0 if self.send_s is None else 2 * self.send_s[ends])
        backwards = seconds[::-1]
        least = backwards == np.minimum.accumulate(backwards)
        at = np.maximum.accumulate(np.where(least, np.arange(len(ends)), 0))
        return len(ends) - 1 - at[::-1]
