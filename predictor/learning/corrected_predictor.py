"""A predictor as corrected by observations: answers as arrays, by row of its job table, and with intervals and reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from models.features import Floats
from predictor.answering.bounds import taking_turns, within_shares
from predictor.gaussian_process.known_members import KnownMembers
from predictor.gaussian_process.rows import Rows, partners_of
from predictor.learning.answers.basis import Basis, reason_of
from predictor.learning.answers.parts import SlowdownOf, of_rows, slowdown_of_parts, slowest_part
from predictor.learning.answers.time_sliced import bounded_rows, bounded_sets, members_bounded, no_slower
from predictor.learning.evidence.alone import Notes
from predictor.learning.state import State
from predictor.types import Prediction, PredictionArrays
from profiling.workload import ColocationSet

if TYPE_CHECKING:
    from predictor.examples.examples import Integers


class CorrectedPredictor:
    """A `SetPredictor` of one state of a posterior, in which something was observed.

    Args:
        state: what answers follow from.
        known: numbers the members.
    """

    def __init__(self, state: State, known: KnownMembers) -> None:
        self.state, self._known = state, known

    def rows_of(self, sets: Sequence[ColocationSet]) -> tuple[Rows, Floats]:
        """Rows of the process for all members of some sets, set by set, and their corrected log slowdowns."""
        sets, _ = self.state.measured.told_sets(sets)
        arrays = self.state.predictor.predict_arrays(sets)
        numbers = self._known.of_sets(sets, arrays.solo_step_time_s)
        present = numbers >= 0
        own = numbers[present]
        rows = Rows(own, partners_of(own, np.nonzero(present)[0]))
        slowdown = self.state.corrections.slowdown(arrays.slowdown, numbers)
        return rows, np.log(slowdown[present])

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        """See `SetPredictor`."""
        state = self.state
        sets, _ = state.measured.told_sets(sets)
        arrays = state.predictor.predict_arrays(sets)
        numbers = self._known.of_sets(sets, arrays.solo_step_time_s)
        sharing = np.array([s.sharing for s in sets])
        related = state.related.of_sets(sets, numbers, self.predict_arrays)
        parts = slowdown_of_parts(sets, state.predictor)
        corrected = self._corrected(arrays, numbers, parts, sharing, related)
        places, most = self._time_sliced(sets)
        return no_slower(corrected, places, most) if places else corrected

    def _time_sliced(self, sets: Sequence[ColocationSet]) -> tuple[list[int], Floats]:
        """Numbers of the sets that `bounded_sets` names, and their slowdowns [P, M] time-sliced."""
        places = bounded_sets(sets, self.state.predictor, self.state.under_mps)
        sliced = [replace(sets[k], sharing="time-slice") for k in places]
        return places, self.predict_arrays(sliced).slowdown if places else np.zeros((0, 1))

    def predict_rows(self, rows: Integers, sharing: str) -> PredictionArrays:
        """The same for rows [S, M] of the predictor's job table, -1 where a set has fewer members."""
        state = self.state
        table = state.predictor.table_
        rows = state.told_table(rows)
        arrays = state.predictor.predict_rows(rows, sharing)
        numbers = self._known.of_rows(rows, table)
        related = state.related.of_rows(rows, numbers, table, lambda told: self.predict_rows(told, sharing))
        parts, modes = of_rows(rows, sharing, state.predictor), np.full(len(rows), sharing)
        corrected = self._corrected(arrays, numbers, parts, modes, related)
        places = bounded_rows(rows, sharing, state.predictor, state.under_mps)
        if not places:
            return corrected
        sliced = self.predict_rows(table.time_sliced(rows[places]), "time-slice")
        return no_slower(corrected, places, sliced.slowdown)

    def _corrected(
        self, arrays: PredictionArrays, numbers: Integers, parts: SlowdownOf, sharing: NDArray[np.str_],
        related: tuple[Integers, Floats],
    ) -> PredictionArrays:  # fmt: skip
        """The predictor's answers with slowdowns, predicted solo step times and memory corrected.

        Args:
            arrays: the predictor's; numbers: [S, M] of the members; sharing: [S] modes.
            parts: the predictor's slowdowns of parts of the sets.
            related: see `RelatedAlone.of_sets`.
        """
        corrections = self.state.corrections
        unbounded = (sharing == "mig")[:, None] | corrections.confirmed(numbers)
        slowdown = slowest_part(arrays.slowdown, numbers, parts, corrections.slowdown, unbounded)
        places, of_related = related
        slowdown[places, : of_related.shape[1]] = of_related
        solo = arrays.solo_step_time_s
        if len(corrections.solo_errors):
            solo = solo * np.exp(corrections.solo(numbers))
        # A slower step spreads the same device work over more time.
        faster = arrays.solo_step_time_s * arrays.slowdown / (solo * slowdown)
        # Nor does it grow beside others: it is at most the step alone.
        busy = np.minimum(arrays.utilization_ratio * faster, 1.0 / slowdown)
        result = replace(
            arrays,
            slowdown=slowdown,
            solo_step_time_s=solo,
            step_time_s=solo * slowdown,
            utilization_ratio=taking_turns(busy, sharing == "time-slice"),
        )
        return self.state.ran_out.corrected_arrays(result, numbers, sharing)

    def predict_many(self, sets: Sequence[ColocationSet]) -> list[Prediction]:
        """Several sets, with intervals and reasons."""
        told, notes = self.state.measured.told_sets(sets)
        return self._with_shifts(self.state.unweighted.predict_many(told), told, notes)

    def _with_shifts(
        self, predictions: Sequence[Prediction], sets: Sequence[ColocationSet], notes: Sequence[Notes]
    ) -> list[Prediction]:
        """The predictor's predictions with corrections applied; their intervals are those of `Corrector`.

        Args:
            predictions: of `sets`.
            sets: as asked, with what was observed of their jobs alone stated.
            notes: per set, what that was.
        """
        state, corrector = self.state, self.state.corrector
        members = [member for prediction in predictions for member in prediction.members]
        number = iter(
            self._known.numbers(
                [(w, s.device, s.sharing) for s in sets for w in s.workloads],
                [member.solo_step_time_s.value for member in members],
            )
        )
        numbers = [list(islice(number, len(s.workloads))) for s in sets]
        keys = [(own, *sorted((*row[:m], *row[m + 1 :]))) for row in numbers for m, own in enumerate(row)]
        shifts, added = state.pair_answers.beside(keys)
        # Naming only the heaviest observation is faster.
        bases = iter(state.bases.of(added, most=1))
        if state.predictor is not state.unweighted:
            weighted = state.predictor.predict_arrays(sets)
            slowdown = weighted.slowdown[weighted.mask].tolist()
            shifts = list(map(corrector.reweighed, shifts, members, slowdown))
        least_solo_s = state.limits.least_s(np.array([key[0] for key in keys])).tolist()
        slowest, most = state.parts.slowest(sets, numbers), state.pair_bounds.of_keys(keys)
        for k, slowdown in state.related.of_members(sets, numbers, self.predict_arrays):
            shifts[k] = corrector.at_slowdown(shifts[k], members[k], slowdown)
            slowest[k] = most[k] = slowdown
        after = map(corrector, members, shifts, slowest, most, least_solo_s)
        of_memory = state.memory_words(sets)
        places, bounds = self._time_sliced(sets)
        sliced = dict(zip(places, bounds.tolist(), strict=True))
        result = []
        for k, (colocation_set, prediction) in enumerate(zip(sets, predictions, strict=True)):
            now = tuple(islice(after, len(prediction.members)))
            now = members_bounded(now, colocation_set.sharing, sliced.get(k))
            moved = zip(colocation_set.workloads, prediction.members, now, bases, strict=False)
            reasons = [reason_of(w.model, was, member, basis) for w, was, member, basis in moved]
            now, told = notes[k].as_asked(now), notes[k].reasons
            busy = within_shares(prediction.total_utilization_ratio, now)
            ignored = state.limits.ignored_of(numbers[k])
            words = (*prediction.reasons, *told, *ignored, *filter(None, reasons), *of_memory[k])
            result.append(replace(prediction, members=now, total_utilization_ratio=busy, reasons=words))
        return state.ran_out.corrected_predictions(result, numbers)

    def basis(self, colocation_set: ColocationSet, member: int) -> Basis:
        """The basis of a member's answer."""
        sets, _ = self.state.measured.told_sets([colocation_set])
        solo_step_time_s = self.state.unweighted.predict_arrays(sets).solo_step_time_s
        row = self._known.of_sets(sets, solo_step_time_s)[0].tolist()
        key = (row[member], *sorted(number for m, number in enumerate(row) if m != member and number >= 0))
        return self.state.bases.of(self.state.pair_answers.beside([key])[1])[0]
