"""Upper ends of slowdowns in parts of sets: one more job makes no step faster, so it lowers no upper end."""

from __future__ import annotations

from collections.abc import Iterator
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

# Sets that are compared at once.
_TOGETHER = 512


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
    for mode in sorted(set(sharing.tolist()) - {"mig"}):
        for small in (True, False):
            here = np.flatnonzero((size > 2) & ((size <= WHOLE) == small) & (sharing == mode))
            for start in range(0, len(here), _TOGETHER):
                some = here[start : start + _TOGETHER]
                asked = rows[some, : size[some].max()]
                parts = (
                    table.contention().excess_of_parts(asked, mode)
                    if small
                    else _pairs_and_triples(table, asked, mode)
                )
                for places, excess in parts:
                    number, part = np.nonzero(np.isfinite(excess[:, :, 0]))
                    members, log_slowdown = (
                        asked[number[:, None], places[part]],
                        np.log1p(excess[number, part]),
                    )
                    weight = table.utilization[members] * remaining_contention(table.sm_share[members])
                    index = np.repeat(np.arange(len(members)), places.shape[1])
                    count = effective_members(weight.ravel(), index, len(members))
                    scale = intervals.scale(log_slowdown, count[:, None])
                    upper = log_slowdown + quantile[some[number], None] * scale
                    np.maximum.at(result, (some[number][:, None], places[part]), upper)
    return result


def _pairs_and_triples(table: JobTable, rows: Integers, mode: str) -> Iterator[tuple[Integers, Floats]]:
    """Like `excess_of_parts`, for larger sets."""
    for count in PARTS_OF_LARGE:
        places = np.array(list(combinations(range(rows.shape[1]), count)))
        within = rows[:, places]
        present = (within >= 0).all(2)
        excess = np.full(within.shape, np.inf)
        excess[present] = table.excess(within[present], mode)
        yield places, excess
