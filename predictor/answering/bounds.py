"""Bounds on every answer about a set, whatever the networks learned.

An additional neighbour makes no job faster, jobs never measured together follow processor sharing, and jobs
that take turns get at most all of the time together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import combinations

import numpy as np

from models.features import Floats
from predictor.examples.examples import Integers
from predictor.types import Bools, MemberPrediction, Quantity

# Sets up to this size are checked against all their subsets. Larger ones have too many, so only pairs and
# triples are used.
WHOLE = 8
PARTS_OF_LARGE = (2, 3)


def never_faster_with_more(
    answer: Callable[[Integers], Floats],
    rows: Integers,
    sizes: Sequence[int] | None = None,
    left: Floats | None = None,
) -> Floats:
    """Excess slowdown (slowdown - 1) of every member, at least as large as beside a subset of its neighbours.

    Networks learn mostly from pairs and extrapolate to more; without this bound, a third job sped up two
    others by as much as a third. In sets of up to `WHOLE` members it holds for every subset, in larger ones
    for pairs and triples.

    Args:
        answer: function from rows [S, M] to excess [S, M], set by set; 0 where there is no member.
        rows: [S, M] numbers of members, -1 after those of smaller sets.
        sizes: sizes of the subsets to check; default: all.
        left: [V] share of the time for which each keeps the device idle when alone, 0 where unknown. One more neighbour
            leaves others at least that share of their speed (sets of up to `WHOLE` members). Without this bound, a third
            job that uses half a per cent of a device slowed two others by up to a fifth.
    """
    width = rows.shape[1]
    if width < 3:
        return answer(rows)
    if sizes is None and width <= WHOLE:
        return largest_of_parts(list(parts_by_size(answer, rows, left)), rows)
    size = (rows >= 0).sum(1)
    small = size <= WHOLE
    if sizes is None and small.any():  # whose answers do not depend on larger ones of the call
        excess = np.zeros(rows.shape)
        some = rows[small, :WHOLE]
        excess[small, :WHOLE] = largest_of_parts(list(parts_by_size(answer, some, left)), some)
        if not small.all():
            excess[~small] = never_faster_with_more(answer, rows[~small])
        return excess
    excess = answer(rows)
    for count in sizes or PARTS_OF_LARGE:
        # All subsets of one size together, because the overhead of a call exceeds the cost of a few sets.
        places = np.array(list(combinations(range(width), count)))
        within = rows[:, places]
        asked, part = np.nonzero((within >= 0).all(2) & (size > count)[:, None])
        if len(asked):
            np.maximum.at(excess, (asked[:, None], places[part]), answer(within[asked, part]))
    return excess


def largest_of_parts(parts: Sequence[Floats], rows: Integers) -> Floats:
    """[S, M] what `never_faster_with_more` says of sets, from what `parts_by_size` says of their parts."""
    excess = np.zeros(rows.shape)
    for bounded in parts:
        np.maximum(excess, _or_zero(bounded).max(1), out=excess)
    return excess


def excess_of_parts(parts: Sequence[Floats], rows: Integers) -> Iterator[tuple[Integers, Floats]]:
    """What `never_faster_with_more` says of every proper part of sets of up to `WHOLE` members, by size.

    Args:
        parts: of `parts_by_size`.
        rows: [S, M] as there.

    Returns:
        [P, C] columns of parts, and [S, P, C] excess of their members; inf in sets of which one is no proper part.
    """
    width, size = rows.shape[1], (rows >= 0).sum(1)
    earlier: Floats = np.zeros(0)
    for count, bounded in enumerate(parts[: width - 2], 2):
        places, without = _columns(width, count)
        largest = bounded
        if count > 2:
            largest = bounded.copy()
            for fewer in without.T:
                np.maximum(largest, _or_zero(earlier[:, fewer]), out=largest)
        excess = largest[:, np.arange(len(places))[:, None], places]
        yield places, np.where((size > count)[:, None, None], excess, np.inf)
        earlier = largest


def _or_zero(excess: Floats) -> Floats:
    return np.where(np.isfinite(excess), excess, 0.0)


def parts_by_size(
    answer: Callable[[Integers], Floats], rows: Integers, left: Floats | None
) -> Iterator[Floats]:
    """Answers [S, P, M] about all parts of sets of `rows` [S, M], inf where there is none, from pairs on.

    An upper bound for every subset from three members on follows from the subsets with one member less; the
    largest answer for a subset, so bounded, is that for the whole set. Arguments are those of `never_faster_with_more`.
    """
    sets, width = rows.shape
    with np.errstate(divide="ignore"):
        grows = None if left is None else 1.0 / np.where(rows >= 0, left[rows], 1.0)
    earlier: Floats = np.zeros(0)
    for count in range(2, width + 1):
        places, without = _columns(width, count)
        within = rows[:, places]
        asked, part = np.nonzero((within >= 0).all(2))
        if not len(asked):
            return
        bounded = np.full((sets, len(places), width), np.inf)
        bounded[asked[:, None], part[:, None], places[part]] = answer(within[asked, part])
        if grows is not None and count > 2:
            for gone, fewer in zip(places.T, without.T, strict=True):
                np.minimum(bounded, (1.0 + earlier[:, fewer]) * grows[:, gone, None] - 1.0, out=bounded)
        yield bounded
        earlier = bounded


@cache
def _columns(width: int, count: int) -> tuple[Integers, Integers]:
    """[P, count] columns of all parts of a size of sets of `width`, and [P, count] number of the part that lacks one of
    these columns, among those of one less."""
    parts = list(combinations(range(width), count))
    number = {part: k for k, part in enumerate(combinations(range(width), count - 1))}
    without = [[number[part[:k] + part[k + 1 :]] for k in range(count)] for part in parts]
    return np.array(parts), np.array(without)


def no_busier_than_pairs(
    answer: Callable[[Integers], Floats],
    of_pairs: Callable[[Integers], Floats],
    rows: Integers,
    utilization_ratio: Floats,
) -> Floats:
    """Excess slowdown of sets that take turns: three or more jobs use no more device time than the best pair of them.

    What a pair uses beyond 1 (phases that overlap, an inexact utilisation) was learned from measured pairs; larger sets
    were hardly measured time-sliced, and networks extrapolate to three jobs that together use 1.6 devices. Limiting
    pairs, too, makes answers worse on most campaigns (`docs/benchmarks.md`, sharing modes).

    Args:
        answer: as in `never_faster_with_more`.
        of_pairs: the same for rows [P, 2] without -1.
        rows: [S, M], -1 where a set has fewer members.
        utilization_ratio: [V] of every row of the table, alone.
    """
    excess, width = answer(rows), rows.shape[1]
    if width < 3:
        return excess
    present = rows >= 0
    busy = np.where(present, utilization_ratio[rows], 0.0)
    used = (busy / (1.0 + excess)).sum(1)
    over = np.flatnonzero((used > 1.0) & (present.sum(1) > 2))
    if not len(over):
        return excess
    places = np.array(list(combinations(range(width), 2)))
    pairs, there = rows[over][:, places], present[over][:, places].all(2)
    beside = np.zeros(pairs.shape)
    beside[there] = of_pairs(pairs[there])
    best = np.where(there, (busy[over][:, places] / (1.0 + beside)).sum(2), 0.0).max(1)
    factor = np.maximum(used[over] / np.maximum(best, 1.0), 1.0)
    excess[over] = ((1.0 + excess[over]) * factor[:, None] - 1.0) * present[over]
    return excess


def at_most_all_the_time(excess: Floats, busy_ratio: Floats) -> Floats:
    """[S, M] excess slowdown of sets on one core, scaled so that their jobs get at most all of its time together.

    Unlike kernels of two jobs on a GPU, steps on a core cannot overlap.

    Args:
        excess: [S, M] predicted.
        busy_ratio: [S, M] share of the time for which each keeps the core busy alone, 0 where there is no member.
    """
    used = (busy_ratio / (1.0 + excess)).sum(1, keepdims=True)
    return np.where(busy_ratio > 0, (1.0 + excess) * np.maximum(used, 1.0) - 1.0, excess)


def processor_sharing_excess(utilization_ratio: Floats) -> Floats:
    """[S, 1] excess slowdown under processor sharing: the device is never idle while a process has work.

    Args:
        utilization_ratio: [S, M] share of the time for which each keeps the device busy alone, 0 where there
            is no member.
    """
    # Column by column, because numpy reduces rows of two or three slowly.
    together = sum(utilization_ratio.T, np.zeros(len(utilization_ratio)))
    return np.maximum(together - 1.0, 0.0)[:, None]


def taking_turns(utilization: Floats, time_sliced: Bools) -> Floats:
    """[S, M] shares of the device's time; in sets that are `time_sliced` [S] they sum to at most 1."""
    together = utilization @ np.ones(utilization.shape[1])
    return np.asarray(utilization / np.where(time_sliced, np.maximum(together, 1.0), 1.0)[:, None])


def within_shares(together: Quantity, members: Sequence[MemberPrediction]) -> Quantity:
    """A set's utilisation: at most the sum of its members' shares of the device's time, at least the largest.

    A device is busy only while a member's kernel runs. A share of its time says nothing of how many multiprocessors are
    busy, so the total may exceed the sum of the members' SM shares.
    """
    shares = [m.utilization_ratio.value for m in members]
    value = max(min(together.value, sum(shares)), max(shares))
    if value == together.value:
        return together
    moved = value - together.value
    return Quantity(
        value, min(max(together.lower + moved, 0.0), value), max(min(together.upper + moved, 1.0), value)
    )
