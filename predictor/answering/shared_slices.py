"""Jobs that share a MIG slice: with more multiprocessors, bandwidth and memory, no step of theirs is longer.

Networks see a slice as a device of its own, and hardly any were measured shared: one step in twenty was longer on a larger
slice of the card, by up to a half.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats

if TYPE_CHECKING:
    from predictor.answering.job_table import JobTable
    from predictor.examples.examples import Integers


class SharedSlices:
    """Sets of which some share a slice, and the same jobs on all larger slices of the card and on the whole card.

    Args:
        table: rows of the jobs; those on larger slices are added.
        rows: [S, M] rows of it, -1 where a set has fewer members.
        chosen: numbers of the sets that share a slice.

    Attributes:
        everywhere: [R, M] rows of the table: the sets, then those on larger slices.
    """

    def __init__(self, table: JobTable, rows: Integers, chosen: Integers) -> None:
        larger = table.on_larger(rows[chosen])
        solo_s = table.solo_step_s
        self._chosen = chosen
        # Of jobs alone, relative to the slice that is asked for.
        self._step_ratio: Floats = solo_s[larger] / solo_s[rows[chosen]]
        self.everywhere = np.concatenate([rows, larger.reshape(-1, rows.shape[1])])

    def at_least_on_larger(self, excess: Floats, columns: Integers | slice = slice(None)) -> Floats:
        """Excess slowdowns [S, ...] of the sets, from those [R, ...] of `everywhere`.

        Args:
            excess: of the members in some columns of the sets.
            columns: these.
        """
        ratio = self._step_ratio[:, :, columns]
        sets = len(excess) - ratio.shape[0] * ratio.shape[1]
        own, larger = excess[:sets], excess[sets:].reshape(ratio.shape)
        own[self._chosen] = np.maximum(own[self._chosen], ((1.0 + larger) * ratio).max(0) - 1.0)
        return own
