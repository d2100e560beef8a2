"""Log ratios of measured rows as users would get them, with bounds applied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats
from predictor.answering.upper_ends import upper_ends_of_parts
from predictor.gaussian_process.set_process import NETWORK_SHARE

if TYPE_CHECKING:
    from predictor.answering.job_table import JobTable
    from predictor.examples.examples import Examples, Integers
    from predictor.predictor import Predictor


def answered_log_ratio(
    predictor: Predictor, examples: Examples, network_share: float = NETWORK_SHARE
) -> tuple[Floats, Floats]:
    """[T] log of co-located / solo throughput, and [T] log slowdown.

    They come from the networks and the process, for the rows' campaigns, with the bounds that apply to
    answers (`Contention.excess`).

    Args:
        predictor: a fitted one.
        examples: the rows.
        network_share: weight of the networks in their mean with the process.
    """
    ratio, slow = predictor.fitted_.model.predict_log_ratio(examples, network_share)
    moved = _moved(predictor.table_, examples, network_share)
    return ratio - moved, slow + moved


def upper_ends_of(predictor: Predictor, examples: Examples, quantile: Floats) -> Floats:
    """[T] largest log of the upper end of each member's slowdown in a part of its set; see `upper_ends_of_parts`.

    Args:
        predictor: a fitted one.
        examples: the rows.
        quantile: [S] quantiles of the sets.
    """
    rows, modes = _rows_of(predictor.table_, examples)
    intervals = predictor.fitted_.intervals
    upper = upper_ends_of_parts(predictor.table_, rows, modes.astype(str), quantile, intervals)
    return np.asarray(upper[examples.places])


def _rows_of(table: JobTable, examples: Examples) -> tuple[Integers, np.ndarray]:
    """[S, M] rows of the job table, -1 where a set has fewer members, and [S] sharing modes."""
    sets, position = examples.places
    rows = np.full((len(examples.set_ids), int(position.max(initial=0)) + 1), -1, dtype=np.int64)
    keys = list(zip(examples.workloads, examples.devices, examples.mode, strict=True))
    rows[sets, position] = table.rows(keys)
    modes = np.full(len(rows), "", dtype=object)
    modes[sets] = examples.mode
    return rows, modes


def _moved(table: JobTable, examples: Examples, network_share: float) -> Floats:
    rows, modes = _rows_of(table, examples)
    moved, c = np.zeros(rows.shape), table.contention(network_share)
    for mode in sorted(set(modes.tolist())):
        asked = np.flatnonzero(modes == mode)
        bounded, plain = (answer(rows[asked], mode) for answer in (c.excess, c.unbounded_excess))
        moved[asked] = np.log1p(bounded) - np.log1p(plain)
    return np.asarray(moved[examples.places])
