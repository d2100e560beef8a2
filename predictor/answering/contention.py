"""Slowdowns of co-location sets: the networks' and the process's answers, and what bounds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from models.features import OCCUPANCY, Floats
from predictor.answering.bounds import (
    WHOLE,
    at_most_all_the_time,
    excess_of_parts,
    largest_of_parts,
    never_faster_with_more,
    no_busier_than_pairs,
    parts_by_size,
    processor_sharing_excess,
)
from predictor.answering.kept_pairs import MOST_ASKED, KeptPairs, PairsWithin
from predictor.answering.pair_corrections import corrected_excess
from predictor.answering.repeated import each_once
from predictor.answering.set_network import Array
from predictor.answering.settings import setting_rows
from predictor.answering.shared_slices import SharedSlices
from predictor.answering.shares import beside_shares

if TYPE_CHECKING:
    from predictor.answering.job_table import JobTable
    from predictor.examples.examples import Integers
    from predictor.fitted.model import CotenantModel

# Answers [P, 2] about pairs, from rows [P, 2] without -1.
PairsOf = Callable[["Integers"], Floats]
_TIME_SLICE, _MPS = "time-slice", "mps"
# Sets of which the excess of all parts is kept: of eight members, some 16 KB each.
_MOST_KEPT = 64


class Contention:
    """What the jobs of a table do to each other.

    Args:
        table: rows of the jobs.
        model: networks and process.
        network_share: weight of the networks in the mean of log slowdowns, from 0 to 1; the process has the rest.
    """

    def __init__(self, table: JobTable, model: CotenantModel, network_share: float) -> None:
        self._table, self._process, self._campaigns = table, model.process, model.campaigns
        self.network_share = network_share
        self._settings: dict[str, Array] = {}
        self._pairs: dict[str, KeptPairs] = {}
        self._latest: tuple[object, list[Floats]] | None = None

    def excess(self, rows: Integers, sharing: str) -> Floats:
        """Predicted latent slowdown - 1: the ensemble's mean log slowdown, averaged with the process's.

        An additional neighbour makes no job faster, nor slower than by its share of the time if that was measured;
        unmeasured MPS makes none slower than time slicing; jobs on a core get at most all of its time; and no step is
        longer on a larger slice of a card.

        Args:
            rows: [S, M] rows of the table, -1 where a set has fewer members; equal sets are computed once.
            sharing: sharing mode of all sets.

        Returns:
            [S, M]; 0 where masked.
        """
        slices = self._shared_slices(rows, sharing)
        if slices is None:
            return self._in_place(rows, sharing)
        return slices.at_least_on_larger(self._in_place(slices.everywhere, sharing))

    def excess_of_parts(self, rows: Integers, sharing: str) -> Iterator[tuple[Integers, Floats]]:
        """`excess` of all parts of sets of up to `WHOLE` members; see `bounds.excess_of_parts`."""
        slices = self._shared_slices(rows, sharing)
        everywhere = rows if slices is None else slices.everywhere
        for places, excess in excess_of_parts(self._parts(everywhere, sharing), everywhere):
            yield places, excess if slices is None else slices.at_least_on_larger(excess, places)

    def _shared_slices(self, rows: Integers, sharing: str) -> SharedSlices | None:
        """Where jobs share a slice, None if none do."""
        if not self._table.has_slices or rows.shape[1] < 2 or sharing == "mig":
            return None
        chosen = np.flatnonzero(self._table.on_slice[rows[:, 0]] & (rows[:, 1] >= 0))
        return SharedSlices(self._table, rows, chosen) if len(chosen) else None

    def _in_place(self, rows: Integers, sharing: str) -> Floats:
        """[S, M] `excess`, whatever is answered on larger slices."""
        if rows.shape[1] < 3:
            return self._under_shares(self._of_pairs(rows, sharing), rows)
        if rows.shape[1] <= WHOLE and len(rows) <= _MOST_KEPT:
            return largest_of_parts(self._parts(rows, sharing), rows)
        of_parts, left = self._of_parts(rows, sharing)
        # Different sets of a few jobs share many subsets.
        bounded = partial(never_faster_with_more, of_parts, left=left)
        return each_once(bounded, rows, len(self._table.solo_step_s))

    def _parts(self, rows: Integers, sharing: str) -> list[Floats]:
        """Excess of all parts of sets of up to `WHOLE` members, see `parts_by_size`; of a few sets, kept until others
        are asked for, because their intervals follow from it, too."""
        asked = sharing, rows.shape, rows.tobytes()
        latest = self._latest  # read once, because other threads replace it
        if latest is not None and latest[0] == asked:
            return latest[1]
        of_parts, left = self._of_parts(rows, sharing)
        parts = list(parts_by_size(of_parts, rows, left))
        if len(rows) <= _MOST_KEPT:
            self._latest = asked, parts
        return parts

    def _of_parts(self, rows: Integers, sharing: str) -> tuple[Callable[[Integers], Floats], Floats | None]:
        """Answers about parts of sets of `rows` from three members on, and `left` for the bounds on these."""
        count = len(self._table.solo_step_s)
        # Subsets of a set have pairs in common.
        within = PairsWithin(partial(self._about_pairs, sharing), rows)
        correction = self._corrections_of(within, rows) if sharing == _TIME_SLICE else None
        whole = partial(self._bounded, sharing, correction)

        def excess_of_pairs(pairs: Integers) -> Floats:
            return within(pairs)[..., 0]

        def of_parts(parts: Integers) -> Floats:
            if parts.shape[1] == 2:
                return self._under_shares(excess_of_pairs(parts), parts)
            return each_once(answer, parts, count)

        def answer(parts: Integers) -> Floats:
            if sharing != _TIME_SLICE:
                return self._under_shares(whole(parts), parts)
            limited = no_busier_than_pairs(whole, excess_of_pairs, parts, self._table.whole_use)
            return self._under_shares(limited, parts)

        return of_parts, None if sharing == "mig" else self._table.left

    def _of_pairs(self, pairs: Integers, sharing: str) -> Floats:
        """[P, 2] excess of jobs that may use all multiprocessors, from rows [P, 2], -1 where a job is alone."""
        if 0 < len(pairs) <= MOST_ASKED and pairs.shape[1] == 2 and (pairs >= 0).all():
            return self._about_pairs(sharing, pairs)[..., 0]
        return each_once(partial(self._bounded, sharing, None), pairs, len(self._table.solo_step_s))

    def _about_pairs(self, sharing: str, pairs: Integers) -> Floats:
        """[P, 2, 2] excess of jobs that may use all multiprocessors, and the process's log correction to it."""
        if len(pairs) > MOST_ASKED:
            return self._new_pairs(sharing, pairs)
        kept = self._pairs.get(sharing)
        if kept is None:
            kept = self._pairs[sharing] = KeptPairs(partial(self._new_pairs, sharing))
        return kept(pairs)

    def _new_pairs(self, sharing: str, pairs: Integers) -> Floats:
        """`_about_pairs`, not cached."""
        plain = self._excess_of_networks(pairs, sharing)
        blended = self._blended(plain, pairs)
        correction = np.log1p(blended) - np.log1p(plain)
        return np.stack([self._limited(blended, sharing, pairs), correction], -1)

    def _corrections_of(self, within: PairsOf, rows: Integers) -> PairsOf | None:
        """Log corrections [P, 2] of pairs; None where the process has no answer to any."""
        numbers = self._table.process_number
        if self._process is None or not self._process.covers(numbers[rows[rows >= 0]]).any():
            return None
        return lambda pairs: within(pairs)[..., 1]

    def _bounded(self, sharing: str, correction: PairsOf | None, rows: Integers) -> Floats:
        """[S, M] excess of jobs that may use all multiprocessors, in larger sets with corrections of their pairs."""
        excess = self.unbounded_excess(rows, sharing)
        if correction is not None:
            excess = corrected_excess(excess, rows, correction, self._table.whole_use)
        return self._limited(excess, sharing, rows)

    def _limited(self, excess: Floats, sharing: str, rows: Integers) -> Floats:
        """What is known of some devices and jobs, whatever the networks and the process have learned."""
        table = self._table
        time_sliced = table.is_time_sliced(rows[:, 0]) if sharing == _MPS else np.zeros(0, dtype=bool)
        if time_sliced.any():
            sliced = table.time_sliced(rows[time_sliced])
            correction = None
            if rows.shape[1] > 2:
                correction = self._corrections_of(
                    PairsWithin(partial(self._about_pairs, _TIME_SLICE), sliced), sliced
                )
            in_turn = self._bounded(_TIME_SLICE, correction, sliced)
            excess[time_sliced] = np.minimum(excess[time_sliced], in_turn)
        if table.processor_shared.any():
            present = rows >= 0
            shared = np.where(present, table.processor_shared[rows], True).all(1)
            busy = np.where(present, table.whole_use[rows], 0.0)[shared]
            excess[shared] = processor_sharing_excess(busy) * present[shared]
        if table.on_core.any():
            together = table.on_core[rows[:, 0]]
            busy = np.where(rows >= 0, table.whole_use[rows], 0.0)[together]
            excess[together] = at_most_all_the_time(excess[together], busy)
        return excess

    def _under_shares(self, excess: Floats, rows: Integers) -> Floats:
        """[S, M] excess of jobs under their shares."""
        table = self._table
        if (table.sm_share < 1.0).any():
            return np.asarray(excess * beside_shares(table.sm_share[rows], rows >= 0) * table.unlimited[rows])
        return excess

    def _excess_of_networks(self, rows: Integers, sharing: str) -> Floats:
        """[S, M] the ensemble's mean."""
        if sharing not in self._settings:
            self._settings[sharing] = setting_rows([sharing], self._campaigns)[0]
        setting, table = self._settings[sharing], self._table
        each = [n.excess(p, rows, setting) for n, p in zip(table.networks, table.prepared, strict=True)]
        if len(each) == 1:
            return each[0].astype(np.float64)
        return np.asarray(np.expm1(np.mean(np.log1p(each), axis=0, dtype=np.float64)))

    def unbounded_excess(self, rows: Integers, sharing: str) -> Floats:
        """Like `excess`, without the bounds, and of sets of three or more without corrections of their pairs."""
        return self._blended(self._excess_of_networks(rows, sharing), rows)

    def _blended(self, excess: Floats, rows: Integers) -> Floats:
        """[S, M] the mean of the networks' excess and the process's; the networks' where it has no answer."""
        if self._process is None:
            return excess
        numbers = self._table.process_number[rows]
        own = self._table.prepared[0].demand[rows, OCCUPANCY].astype(np.float64)
        present = rows >= 0
        if not present.all():
            numbers, own = np.where(present, numbers, -1), np.where(present, own, 0.0)
        # Column by column, because numpy reduces rows of two or three slowly.
        together = sum(own.T, np.zeros(len(rows)))
        return self._process.blended(excess, numbers, together[:, None] - own, self.network_share)
