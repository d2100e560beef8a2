"""The partition of a card and the jobs of each slice that need the fewest seconds, by exact search.

A set of jobs is a bit mask. From the last memory slot to the first, `least[S]` is the fewest seconds that exactly
the jobs of S need on slices from that slot on: either a slice begins there and takes a non-empty subset T of
them, seconds(T) + least of the next slice[S - T], or the slot stays empty. So every placement of every slice is
considered once, not once for each partition that has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from predictor.types import Floats
from profiling.devices import has_mig, mig_layout
from scheduling.slices.exact import subsets, within

# Differences that are rounding errors, not seconds.
_TIE_S = 1e-9
# A slice (device, first memory slot), or a whole card (device, None).
Place = tuple[str, int | None]
# For each memory slot from which slices may follow: those that may begin there and where the next may, smallest
# first; without a slice if the slot stays empty. The first element is the last slot, so that it is known first.
_Steps = tuple[tuple[tuple[Place | None, int], ...], ...]


def places_of(card: str) -> tuple[Place, ...]:
    """Every slice that the card supports, in every place; the whole card if it has no MIG."""
    return tuple(dict.fromkeys(place for step in _steps(card) for place, _ in step if place is not None))


def least_seconds(
    card: str, seconds: Mapping[Place, Floats], jobs: int, largest: int
) -> tuple[float, tuple[tuple[Place, tuple[int, ...]], ...]] | None:
    """Find the slices and their jobs with the fewest seconds in total, each job on exactly one slice.

    Args:
        seconds: for each of `places_of(card)` the [2^jobs] seconds of the sets on it; infinite if one does not
            fit, and for the empty set.
        largest: maximum number of jobs on a slice.

    Returns:
        The seconds, and the numbers of the jobs of each slice in slot order; None if the jobs do not fit.
    """
    whole, part, first = subsets(jobs, largest)
    rest = whole & ~part
    steps = _steps(card)
    nothing = np.full(1 << jobs, np.inf)
    nothing[0] = 0.0
    least = [nothing]
    for step in steps:
        best = np.full(1 << jobs, np.inf)
        for place, following in step:
            after = least[following]
            new = after if place is None else np.minimum.reduceat(seconds[place][part] + after[rest], first)
            best = np.where(new < best - _TIE_S, new, best)
        least.append(best)
    if not np.isfinite(least[-1][-1]):
        return None
    chosen, at, mask = [], len(steps), (1 << jobs) - 1
    while mask:
        parts = within(mask, jobs, largest)
        at, place, taken = _taken(steps[at - 1], least, least[at][mask], seconds, mask, parts)
        if place is not None:
            chosen.append((place, tuple(k for k in range(jobs) if taken >> k & 1)))
        mask &= ~taken
    return float(least[-1][-1]), tuple(chosen)


def _taken(
    step: tuple[tuple[Place | None, int], ...],
    least: list[Floats],
    goal: float,
    seconds: Mapping[Place, Floats],
    mask: int,
    parts: NDArray[np.int64],
) -> tuple[int, Place | None, int]:
    """The choice behind `goal`: the next slot, the slice and its jobs."""
    for place, following in step:
        if place is None:
            if least[following][mask] <= goal + _TIE_S:
                return following, None, 0
            continue
        totals = seconds[place][parts] + least[following][mask & ~parts]
        at = int(np.argmin(totals))
        if totals[at] <= goal + _TIE_S:
            return following, place, int(parts[at])
    raise AssertionError("a finite optimum has a choice behind it")


@lru_cache(maxsize=64)
def _steps(card: str) -> _Steps:
    """Each with the numbers of earlier ones, plus one; 0: no slot is left."""
    if not has_mig(card):
        return ((((card, None), 0),),)
    layout = mig_layout(card)
    steps: list[tuple[tuple[Place | None, int], ...]] = []
    known: dict[tuple[int, int], int] = {}
    largest: dict[int, int] = {}

    def most(slot: int) -> int:
        """Most compute slices that the slots from this one can have."""
        if slot >= layout.slots:
            return 0
        if slot not in largest:
            here = (
                p.compute_slices + most(slot + p.memory_slices) for p in layout.profiles if slot in p.starts
            )
            largest[slot] = max([most(slot + 1), *here])
        return largest[slot]

    def number(slot: int, compute: int) -> int:
        if slot >= layout.slots:
            return 0
        key = slot, min(compute, most(slot))
        if key not in known:
            step: list[tuple[Place | None, int]] = [
                ((layout.device(p), slot), number(slot + p.memory_slices, compute - p.compute_slices))
                for p in layout.profiles
                if slot in p.starts and p.compute_slices <= compute
            ]
            step.append((None, number(slot + 1, compute)))
            steps.append(tuple(step))
            known[key] = len(steps)
        return known[key]

    number(0, layout.compute_slices)
    return tuple(steps)
