"""What no answer about a set may contradict, whatever the networks were taught: one more neighbour makes nobody faster, jobs that nobody
measured together share as processes do, and jobs that take turns have no more than all of the time together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np

from models.features import Floats
from predictor.examples.examples import Integers
from predictor.types import Bools

# Of sets up to this size all parts are looked at. Larger ones have too many, and go by their pairs and triples.
WHOLE = 8
_PARTS_OF_LARGE = (2, 3)


def never_faster_with_more(
    answer: Callable[[Integers], Floats], rows: Integers, sizes: Sequence[int] | None = None
) -> Floats:
    """Excess of slowdown (slowdown - 1) of every member, at least what it has beside a part of its neighbours.

    Networks learn mostly from pairs, and extrapolate to more; without this, a third job sped two others up by as much as a
    third. In sets of up to `WHOLE` members it holds against every part of the set, in larger ones against pairs and triples.

    Args:
        answer: [S, M] excess from rows [S, M], each set by itself; 0 where there is no member.
        rows: [S, M] numbers of members, -1 where a set has fewer.
        sizes: of the parts, where not all of them are to be looked at.
    """
    excess, width = answer(rows), rows.shape[1]
    if width < 3:
        return excess
    size = (rows >= 0).sum(1)
    for count in sizes or (range(2, width) if width <= WHOLE else _PARTS_OF_LARGE):
        # All parts of one size together: a call costs more than the sets of a small one.
        places = np.array(list(combinations(range(width), count)))
        within = rows[:, places]
        asked, part = np.nonzero((within >= 0).all(2) & (size > count)[:, None])
        if len(asked):
            np.maximum.at(excess, (asked[:, None], places[part]), answer(within[asked, part]))
    return excess


def processor_sharing_excess(utilization_ratio: Floats) -> Floats:
    """[S, 1] excess of slowdown where processes take turns at a device that is never idle while one of them has work.

    Args:
        utilization_ratio: [S, M] share of the time for which each keeps the device busy alone, 0 where there is no member.
    """
    # Column by column: numpy reduces rows of two or three slowly.
    together = sum(utilization_ratio.T, np.zeros(len(utilization_ratio)))
    return np.maximum(together - 1.0, 0.0)[:, None]


def taking_turns(utilization: Floats, time_sliced: Bools) -> Floats:
    """[S, M] shares of the device's time, of which those of a set that is `time_sliced` [S] come to at most 1."""
    together = utilization @ np.ones(utilization.shape[1])
    return np.asarray(utilization / np.where(time_sliced, np.maximum(together, 1.0), 1.0)[:, None])
