"""What a corrected answer stands on: the observations that moved it most, in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats
from predictor.learning.corrected import Basis, Influence
from predictor.learning.observed import Observed
from predictor.types import MemberPrediction

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

Label = tuple[str, tuple[str, ...], str]


def bases_of(
    added: Floats, seen: Observed, rows: Integers, labels: dict[int, Label], most: int = 3
) -> list[Basis]:
    """What rows stand on.

    Args:
        added: [R, used] what each used row of the evidence adds to them.
        seen: what was observed.
        rows: [used] numbers of the used rows in `seen`.
        labels: job, partners and device of rows of `seen` in words, as far as they were made; grows.
        most: influences that are named.
    """
    size = np.abs(added)
    heavy = size > 0.01 * size.max(1, keepdims=True)
    count = heavy.astype(np.float32) @ seen.count[rows].astype(np.float32)
    total, left = size.sum(1), size
    order = np.empty((len(size), min(most, size.shape[1])), dtype=np.int64)
    everyone = np.arange(len(size))
    for place in range(order.shape[1]):  # of three influences the maximum is found quicker than by sorting
        order[:, place] = best = left.argmax(1)
        left[everyone, best] = -1.0
    weights = np.take_along_axis(added / np.where(total > 0, total, 1.0)[:, None], order, 1).tolist()
    named = np.take_along_axis(heavy, order, 1).tolist()
    numbers = rows[order].tolist()
    bases = []
    for row, counted in enumerate(count.tolist()):
        heaviest = []
        for number, weight, is_heavy in zip(numbers[row], weights[row], named[row], strict=True):
            if is_heavy:
                if number not in labels:
                    device, _, own, others = seen.keys[number]
                    labels[number] = str(own), tuple(map(str, others)), device
                heaviest.append(Influence(*labels[number], int(seen.count[number]), weight))
        bases.append(Basis(round(counted), tuple(heaviest)))
    return bases


def reason_of(model: str, before: MemberPrediction, after: MemberPrediction, basis: Basis) -> str:
    """What moved the step time of a job of `model`; empty where nothing did by half a percent."""
    factor = after.step_time_s.value / before.step_time_s.value
    if abs(math.log(factor)) < 0.005 or not basis.heaviest:
        return ""
    first = basis.heaviest[0]
    where = f"beside {' and '.join(first.partners)}" if first.partners else "alone"
    return (
        f"{model}: step time x {factor:.2f} from {basis.count} observations, "
        f"most of all {first.job} {where} on {first.device}"
    )
