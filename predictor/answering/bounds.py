"""Bounds on every answer about a set, whatever the networks learned.

An additional neighbour makes no job faster, jobs never measured together follow processor sharing, and jobs
that take turns get at most all of the time together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
        return _one_by_one(answer, rows, left)
    size = (rows >= 0).sum(1)
    small = size <= WHOLE
    if sizes is None and small.any():  # whose answers do not depend on larger ones of the call
        excess = np.zeros(rows.shape)
        excess[small, :WHOLE] = _one_by_one(answer, rows[small, :WHOLE], left)
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


def _one_by_one(answer: Callable[[Integers], Floats], rows: Integers, left: Floats | None) -> Floats:
    """See `never_faster_with_more`."""
    excess = np.zeros(rows.shape)
    for bounded in _by_size(answer, rows, left):
        for now in bounded.values():
            np.maximum(excess, np.where(np.isfinite(now), now, 0.0), out=excess)
    return excess


def excess_of_parts(
    answer: Callable[[Integers], Floats], rows: Integers, left: Floats | None = None
) -> Iterator[tuple[Integers, Floats]]:
    """What `never_faster_with_more` says of every proper part of sets of up to `WHOLE` members, by size.

    Arguments are those of `never_faster_with_more`.

    Returns:
        [P, C] columns of parts, and [S, P, C] excess of their members; inf in sets of which one is no proper part.
    """
    width, size = rows.shape[1], (rows >= 0).sum(1)
    earlier: dict[tuple[int, ...], Floats] = {}
    for count, bounded in enumerate(_by_size(answer, rows, left), 2):
        if count == width:
            return
        largest = dict(bounded)
        for some, now in bounded.items() if count > 2 else ():
            for gone in some:
                fewer = earlier[tuple(place for place in some if place != gone)]
                now = np.maximum(now, np.where(np.isfinite(fewer), fewer, 0.0))
            largest[some] = now
        excess = np.stack([now[:, list(some)] for some, now in largest.items()], 1)
        yield np.array(list(largest)), np.where((size > count)[:, None, None], excess, np.inf)
        earlier = largest


def _by_size(
    answer: Callable[[Integers], Floats], rows: Integers, left: Floats | None
) -> Iterator[dict[tuple[int, ...], Floats]]:
    """Answers [S, M] about all parts of sets of `rows` [S, M], inf where there is none, from pairs on.

    An upper bound for every subset from three members on follows from the subsets with one member less; the
    largest answer for a subset, so bounded, is that for the whole set.
    """
    sets, width = rows.shape
    with np.errstate(divide="ignore"):
        grows = None if left is None else 1.0 / np.where(rows >= 0, left[rows], 1.0)
    earlier: dict[tuple[int, ...], Floats] = {}
    for count in range(2, width + 1):
        parts = list(combinations(range(width), count))
        places = np.array(parts)
        within = rows[:, places]
        asked, part = np.nonzero((within >= 0).all(2))
        if not len(asked):
            return
        own = np.full((sets, len(parts), width), np.inf)
        own[asked[:, None], part[:, None], places[part]] = answer(within[asked, part])
        bounded = dict(zip(parts, own.swapaxes(0, 1), strict=True))
        if grows is not None and count > 2:
            for some, now in bounded.items():
                for gone in some:
                    rest = tuple(place for place in some if place != gone)
                    with_it = (1.0 + earlier[rest]) * grows[:, gone, None] - 1.0
                    np.minimum(now, with_it, out=now)
        yield bounded
        earlier = bounded


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
