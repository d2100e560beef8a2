"""Deduplicates sets within a call, because a cluster runs few different jobs on many GPUs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from models.features import Floats
from predictor.examples.examples import Integers

# Fewer sets than this are faster to answer than to compare.
FEWEST = 2048
# Largest share of distinct sets for which deduplication pays off.
_MOST_DIFFERENT = 0.8
_MOST_KEYS = 2**62  # so that keys fit in an integer


def each_once(answer: Callable[[Integers], Floats], rows: Integers, count: int) -> Floats:
    """`answer(rows)`, computed once for sets with the same members in any order.

    Args:
        answer: function from rows [S, M] to [S, M], set by set and independent of the order of members.
        rows: [S, M] numbers below `count`, -1 where a set has fewer members.
    """
    sets, size = rows.shape
    if sets < FEWEST or (count + 1) ** size > _MOST_KEYS:
        return answer(rows)
    order = np.argsort(-rows, axis=1, kind="stable")  # -1 after the members, as before
    ordered = np.take_along_axis(rows, order, 1)
    keys = ordered[:, 0] + 1
    for column in ordered.T[1:]:
        keys = keys * (count + 1) + (column + 1)
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    if len(first) > _MOST_DIFFERENT * sets:
        return answer(rows)
    result = np.empty(rows.shape)
    np.put_along_axis(result, order, answer(ordered[first])[which], 1)
    return result
