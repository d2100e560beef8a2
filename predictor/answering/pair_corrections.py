"""What the Gaussian process corrects about time-sliced pairs, carried over to larger sets.

The process answers for pairs only (`predictor.gaussian_process.set_process`). Without its corrections, larger sets would know
nothing of what it has learned about their pairs, and a third job that does next to nothing would move the other two from
the mean of process and networks to the networks' answer. Under MPS they are not carried over: no larger sets were
measured in absolute terms, and eight BERT-base on a V100 would sum to 1.34 of one alone.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np

from models.features import Floats
from predictor.examples.examples import Integers


def corrected_excess(
    excess: Floats, rows: Integers, of_pairs: Callable[[Integers], Floats], utilization_ratio: Floats
) -> Floats:
    """[S, M] excess slowdowns with the mean log correction of every member beside each of its partners.

    Partners are weighted by how busy they keep the device alone. Sets of one and two stay as they are.

    Args:
        excess: [S, M] slowdown - 1, 0 where there is no member.
        rows: [S, M] rows of the table, -1 where a set has fewer members.
        of_pairs: log corrections [P, 2] of pairs, from rows [P, 2] without -1.
        utilization_ratio: [V] of every row of the table, alone.
    """
    large = np.flatnonzero((rows >= 0).sum(1) > 2)
    if not len(large):
        return excess
    asked = rows[large]
    present = asked >= 0
    busy = np.where(present, utilization_ratio[asked], 0.0)
    total, weight = np.zeros(asked.shape), np.zeros(asked.shape)
    places = np.array(list(combinations(range(asked.shape[1]), 2)))
    there = present[:, places].all(2)
    correction = np.zeros((*there.shape, 2))
    correction[there] = of_pairs(asked[:, places][there])
    for (a, b), values in zip(places.tolist(), correction.transpose(1, 2, 0), strict=True):
        for own, other, value in ((a, b, values[0]), (b, a, values[1])):
            total[:, own] += busy[:, other] * value
            weight[:, own] += busy[:, other]
    mean = np.divide(total, weight, out=np.zeros(asked.shape), where=weight > 0)
    result = excess.copy()
    result[large] = np.maximum((1.0 + excess[large]) * np.exp(mean) - 1.0, 0.0)
    return result
