"""What a corrected answer stands on: the observations that moved it most, in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats
from predictor.learning.corrected import Basis, Influence
from predictor.learning.observed import Observed
from predictor.types import MemberPrediction
from profiling.workload import Workload

if TYPE_CHECKING:
    from predictor.examples.examples import Integers


def bases_of(added: Floats, seen: Observed, rows: Integers, most: int = 3) -> list[Basis]:
    """What rows stand on.

    Args:
        added: [R, used] what each used row of the evidence adds to them.
        seen: what was observed.
        rows: [used] numbers of the used rows in `seen`.
        most: influences that are named.
    """
    size = np.abs(added)
    heavy = size > 0.01 * size.max(1, keepdims=True)
    count = heavy @ seen.count[rows]
    total = size.sum(1)
    order = np.argsort(-size, axis=1, kind="stable")[:, :most]
    bases = []
    for row, best in enumerate(order.tolist()):
        heaviest = []
        for place in best:
            if heavy[row, place]:
                number = int(rows[place])
                device, _, own, others = seen.keys[number]
                heaviest.append(
                    Influence(
                        str(own), tuple(map(str, others)), device, int(seen.count[number]),
                        float(added[row, place] / (total[row] or 1.0)),
                    )
                )  # fmt: skip
        bases.append(Basis(int(count[row]), tuple(heaviest)))
    return bases


def reason_of(before: MemberPrediction, after: MemberPrediction, basis: Basis) -> str:
    """What moved a step time; empty where nothing did by half a percent."""
    factor = after.step_time_s.value / before.step_time_s.value
    if abs(math.log(factor)) < 0.005 or not basis.heaviest:
        return ""
    first = basis.heaviest[0]
    where = f"beside {' and '.join(first.partners)}" if first.partners else "alone"
    return (
        f"{Workload.parse(before.job).model}: step time x {factor:.2f} from {basis.count} observations, "
        f"most of all {first.job} {where} on {first.device}"
    )
