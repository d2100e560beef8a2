"""The best use of one card by exact search over every partition and every assignment of jobs to its slices.

A set of jobs is a bit mask. `best[S]` is the greatest value that the slices considered so far can have when
they hold exactly the jobs of S. A further slice takes any subset T of them:
best'[S] = max over T of best[S - T] + value[T]. Partitions that begin with the same slices share that work.
With 7 jobs, a slice costs 3^7 = 2,187 additions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from predictor.types import Floats
from profiling.devices.mig import Partition
from profiling.errors import LimitError

MAX_JOBS = 12
NONE = -np.inf


@dataclass(frozen=True, slots=True)
class Packing:
    """The best packing of one partition.

    Attributes:
        jobs: mask of the placed jobs.
        value: sum over its slices.
        least: least speed of any job if fairness is the objective, else 0.
        parts: mask of the jobs on each slice, in the order of `Partition.profiles`; 0 for an empty slice.
    """

    partition: Partition
    jobs: int
    value: float
    parts: tuple[int, ...]
    least: float = 0.0


@lru_cache(maxsize=8)
def subsets(jobs: int, largest: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """All pairs (S, T) with T a subset of S of at most `largest` jobs, sorted by S, and where each S
    begins."""
    count = 1 << jobs
    parts = np.flatnonzero(_sizes(count) <= largest)
    whole, part = np.nonzero((parts[None, :] & ~np.arange(count)[:, None]) == 0)
    return whole, parts[part], np.flatnonzero(np.r_[True, whole[1:] != whole[:-1]])


@lru_cache(maxsize=MAX_JOBS + 1)
def _sizes(count: int) -> NDArray[np.int64]:
    """Number of jobs in each mask below `count`."""
    return np.array([mask.bit_count() for mask in range(count)])


def pack(
    partitions: Sequence[Partition], values: Mapping[str, Floats], jobs: int, largest: int
) -> list[Packing]:
    """Find the best packing of each partition: as many jobs as possible, then the greatest value.

    Args:
        values: for each slice (`MigProfile.name`) the [2^jobs] values of the sets on it: -inf if a set does not fit,
            0 for the empty set.
        largest: maximum number of jobs on a slice.

    Raises:
        LimitError: more than `MAX_JOBS` jobs.
    """
    _check(jobs)
    return _pack(partitions, values, jobs, largest)


def pack_fairly(
    partitions: Sequence[Partition],
    least: Mapping[str, Floats],
    values_from: Callable[[float], Mapping[str, Floats]],
    jobs: int,
    largest: int,
) -> list[Packing]:
    """Like `pack`, but the greatest least speed of any job comes before the value.

    Args:
        least: for each slice the [2^jobs] least speeds within the sets, of each set's fairest option.
        values_from: the values of the sets, as for `pack`, among their options of at least that least speed.

    Raises:
        LimitError: more than `MAX_JOBS` jobs.
    """
    _check(jobs)
    packings: list[Packing] = []
    for partition in partitions:
        names = [p.name for p in partition.profiles]
        bottleneck = _fold(names, least, jobs, largest, np.minimum, np.inf, {})[-1]
        floor = float(bottleneck[_most(bottleneck)])
        packings.extend(
            replace(p, least=floor) for p in _pack([partition], values_from(floor), jobs, largest)
        )
    return packings


def _check(jobs: int) -> None:
    if jobs > MAX_JOBS:
        raise LimitError("too many jobs for one card", expected=f"at most {MAX_JOBS}", got=jobs)


def _pack(
    partitions: Sequence[Partition], values: Mapping[str, Floats], jobs: int, largest: int
) -> list[Packing]:
    memo: dict[tuple[str, ...], Floats] = {}
    packings = []
    for partition in partitions:
        names = [p.name for p in partition.profiles]
        steps = _fold(names, values, jobs, largest, np.add, 0.0, memo)
        chosen = _most(steps[-1])
        parts, left = [], chosen
        for before, name in zip(steps[-2::-1], reversed(names), strict=True):
            inside = within(left, jobs, largest)
            take = int(inside[np.argmax(before[left & ~inside] + values[name][inside])])
            parts.append(take)
            left &= ~take
        packings.append(Packing(partition, chosen, float(steps[-1][chosen]), tuple(reversed(parts))))
    return packings


def _fold(
    names: Sequence[str],
    values: Mapping[str, Floats],
    jobs: int,
    largest: int,
    combine: np.ufunc,
    neutral: float,
    memo: dict[tuple[str, ...], Floats],
) -> list[Floats]:
    """[slices + 1] arrays of [2^jobs]: the best value of the first k slices with exactly the jobs of each
    mask."""
    whole, part, first = subsets(jobs, largest)
    best = np.full(1 << jobs, NONE)
    best[0] = neutral
    steps = [best]
    for count in range(1, len(names) + 1):
        key = tuple(names[:count])
        known = memo.get(key)
        if known is None:
            joined = combine(best[whole & ~part], values[names[count - 1]][part])
            known = memo[key] = np.maximum.reduceat(joined, first)
        best = known
        steps.append(best)
    return steps


def within(mask: int, jobs: int, largest: int) -> NDArray[np.int64]:
    """Subsets of `mask` of at most `largest` jobs, smallest first so that ties leave slices empty."""
    whole, part, first = subsets(jobs, largest)
    end = first[mask + 1] if mask + 1 < len(first) else len(whole)
    return part[first[mask] : end]


def _most(best: Floats) -> int:
    """The mask with the most jobs among the feasible ones, ties broken by the greatest value."""
    size = np.where(best == NONE, -1, _sizes(len(best)))
    among = np.flatnonzero(size == size.max())
    return int(among[np.argmax(best[among])])
