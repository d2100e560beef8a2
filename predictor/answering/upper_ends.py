"""Upper ends of slowdowns in parts of sets: one more job makes no step faster, so it lowers no upper end."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from models.features import Floats
from predictor.answering.bounds import PARTS_OF_LARGE, WHOLE
from predictor.answering.shares import remaining_contention
from predictor.fitted.intervals import Intervals, effective_members

if TYPE_CHECKING:
    from predictor.answering.job_table import JobTable
    from predictor.examples.examples import Integers


def upper_ends_of_parts(
    table: JobTable, rows: Integers, sharing: NDArray[np.str_], quantile: Floats, intervals: Intervals
) -> Floats:
    """[S, M] largest log of the upper end of each member's slowdown in a part of its set, of two members or more.

    For sets of up to `WHOLE` members, these are all parts; for larger ones, pairs and triples. -inf for sets of up to two,
    and under MIG, where each job has a slice of its own.

    Args:
        table: predicts the parts.
        rows: [S, M] rows of it, -1 where a set has fewer members.
        sharing: [S] sharing modes.
        quantile: [S] the sets' quantiles of the normalised residual.
        intervals: say how the error grows with the slowdown.
    """
    result, size = np.full(rows.shape, -np.inf), (rows >= 0).sum(1)
    for count in range(2, rows.shape[1]):
        has_parts = (size > count) & ((size <= WHOLE) | (count in PARTS_OF_LARGE)) & (sharing != "mig")
        places = np.array(list(combinations(range(rows.shape[1]), count)) if has_parts.any() else [])
        for mode in sorted(set(sharing[has_parts].tolist())):
            here = np.flatnonzero(has_parts & (sharing == mode))
            within = rows[here][:, places]
            asked, part = np.nonzero((within >= 0).all(2))
            parts, which = np.unique(within[asked, part], axis=0, return_inverse=True)
            log_slowdown = np.log1p(table.excess(parts, mode))
            weight = table.utilization[parts] * remaining_contention(table.sm_share[parts])
            members = effective_members(weight.ravel(), np.repeat(np.arange(len(parts)), count), len(parts))
            scale = intervals.scale(log_slowdown, members[:, None])
            which, asked = which.ravel(), here[asked]
            upper = log_slowdown[which] + quantile[asked, None] * scale[which]
            np.maximum.at(result, (asked[:, None], places[part]), upper)
    return result
