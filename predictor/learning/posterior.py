"""A fitted predictor corrected by observations, without refitting.

The predictor is the prior mean of a Gaussian process (`predictor.gaussian_process.kernel`) over the log excess of a
slowdown; predicted solo step times are corrected first (`predictor.learning.evidence.step_times`). A posterior depends only
on the set of observations, not on their order or how they were split over calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from models.features import Floats
from predictor.answering.bounds import taking_turns, within_shares
from predictor.answering.never_measured import never_measured
from predictor.examples.observations import Observation, Report, apart
from predictor.examples.out_of_memory import OutOfMemory
from predictor.gaussian_process.kernel import Members
from predictor.gaussian_process.known_members import KnownMembers
from predictor.gaussian_process.members import default_scale
from predictor.gaussian_process.process import Process
from predictor.gaussian_process.rows import Rows, partners_of
from predictor.learning.answers.basis import Label, reason_of
from predictor.learning.answers.corrector import Basis, Corrector
from predictor.learning.answers.parts import SlowdownOf, of_rows, slowdown_of_parts, slowest_part
from predictor.learning.answers.time_sliced import bounded_rows, bounded_sets, members_bounded, no_slower
from predictor.learning.evidence.alone import Notes
from predictor.learning.evidence.config import PosteriorConfig
from predictor.learning.evidence.expected_sets import ExpectedSets
from predictor.learning.evidence.measured_alone import MeasuredAlone
from predictor.learning.evidence.observed import Expected, Observed, by_name, by_name_of_set, set_of
from predictor.learning.evidence.predictable import predictable
from predictor.learning.evidence.prior import Priors
from predictor.learning.state import State
from predictor.types import Bools, Prediction, PredictionArrays, SetPredictor
from profiling.errors import CotenantError, InputError
from profiling.workload import ColocationSet, Workload

if TYPE_CHECKING:
    from predictor.examples.examples import Integers
    from predictor.examples.featurizer import Featurizer
    from predictor.gaussian_process.set_process import SetProcess


class Posterior:
    """A `SetPredictor` conditioned on observed step times.

    Args:
        predictor: the prior mean; answers are its own until something is observed. It is told solo step times that
            were observed in SPECs, and answers accordingly.
        config: how observations are used.
        featurizer: reads graphs; by default the predictor's. Without one, jobs are distinguished by name only.
        training_sets: process of the predictor's training sets; by default the predictor's.

    Attributes:
        observed: the observed step times.
        only_ran: those that it was trained on, which say only that the sets ran; ran_out: sets that ran out of memory.
        measured: what was observed of jobs alone.
        revision: grows whenever an answer may have changed.
    """

    def __init__(
        self,
        predictor: SetPredictor,
        config: PosteriorConfig | None = None,
        featurizer: Featurizer | None = None,
        training_sets: SetProcess | None = None,
    ) -> None:
        self.predictor, self.config = predictor, config or PosteriorConfig()
        self._given = featurizer, training_sets
        if model := getattr(getattr(predictor, "fitted_", None), "model", None):
            featurizer, training_sets = featurizer or model.featurizer, training_sets or model.process
        self._priors = Priors(self.config, training_sets)
        self._known = KnownMembers(self.config.parameters, default_scale(), featurizer, self._priors.start)
        self._corrector = Corrector(self.config.parameters)
        self.observed = self.only_ran = self.ran_out = Observed.nothing()
        self.measured = MeasuredAlone(spelled=self._known.spelled)
        self._state: State | None = None
        self._earlier: State | None = None
        self._of_row: Integers = np.zeros(0, np.int64)
        self._labels: dict[int, Label] = {}
        self._expected_sets = ExpectedSets(self.config.parameters.knee)
        self.revision = 0

    def __len__(self) -> int:
        """Number of observations taken in."""
        return int(self.observed.count.sum()) + self.measured.unstated_steps

    @property
    def knows_nothing(self) -> bool:
        """Whether answers are the predictor's own."""
        return not any((len(self.observed), len(self.measured), len(self.only_ran), len(self.ran_out)))

    @property
    def version(self) -> str:
        return str(getattr(self.predictor, "version", ""))

    def observe(self, observations: Iterable[Report]) -> None:
        """Take in observations; those of single jobs say nothing that their SPECs state.

        Raises:
            UnknownNameError: unknown model or device; nothing was taken in.
        """
        kept, out = apart(observations)
        new = [o for o in kept if len(o.colocation_set.workloads) > 1 or self.learns_solo(o.workload)]
        alone = self.measured.observed(kept) if self.config.learn_solo else self.measured
        if not new and not out and alone is self.measured:
            return
        ran_out = self.ran_out.met(by_name_of_set(out), self._expected)
        self.observed, self.measured, self.ran_out = self._and(self.observed, new), alone, ran_out
        self._outdated()

    def ran(self, observations: Iterable[Observation]) -> None:
        """Take in only that the sets of observations ran, those that it was trained on; unknown jobs are skipped."""
        if some := predictable(self.predictor, list(observations)):
            self.only_ran = self._and(self.only_ran, some)
            self._outdated()

    def _outdated(self) -> None:
        """Answers are to be computed anew."""
        if self._state is not None:
            self._earlier = self._state
        self._state = None
        self.revision += 1

    def over(self, predictor: SetPredictor) -> Posterior:
        """The same observations with another predictor, such as a newer version.

        Observations that it cannot predict are skipped.
        """
        other = self.unobserved(predictor)
        other.take(OutOfMemory(set_of(key)) for key in self.ran_out.keys)
        other.take(self.observed.observations())
        other.ran(self.only_ran.observations())
        other.measured, other._state = self.measured, None
        return other

    def unobserved(self, predictor: SetPredictor | None = None) -> Posterior:
        """The same without observations, over another predictor if one is given."""
        if predictor is None or predictor is self.predictor:
            return Posterior(self.predictor, self.config, *self._given)
        return Posterior(predictor, self.config, self._given[0])

    def take(self, observations: Iterable[Report]) -> int:
        """Like `observe`, but skips observations that the predictor cannot predict and returns how many."""
        kept = list(observations)
        try:
            self.observe(kept)
            return 0
        except CotenantError:
            pass
        some = predictable(self.predictor, kept)
        self.observe(some)
        return len(kept) - len(some)

    def extended(self, observations: Iterable[Report], ran: Iterable[Observation] = ()) -> Posterior:
        """A copy that has also seen these (as with `take`), and those that `ran`; this one is unchanged."""
        other = copy(self)
        other._labels = dict(self._labels)  # of rows that the two may not share
        other.take(observations)
        other.ran(ran)
        _ = other.state  # computed now, not by the first query
        return other

    def learns_solo(self, workload: Workload) -> bool:
        """Whether observations of a job alone add anything."""
        return self.config.learn_solo and workload.solo.step_time_s is None

    def told(self, device: str, sharing: str, workload: Workload) -> Workload:
        """The job with what was observed of it alone, as its SPEC would state it; as it is if that is nothing."""
        return self.measured.told(device, sharing, workload)

    def _and(self, observed: Observed, observations: Sequence[Observation]) -> Observed:
        """`observed` and further ones; the predictor is queried about new sets."""
        named, values = by_name(observations)
        return observed.met(named, self._expected).told(values)

    def _expected(self, sets: Sequence[ColocationSet]) -> tuple[Integers, Expected]:
        expected = Expected.of(self.predictor, sets)
        return self._numbers(sets, expected.solo_step_time_s), expected

    def _numbers(self, sets: Sequence[ColocationSet], solo_step_time_s: Floats) -> Integers:
        """[S, M] numbers of members, -1 where there is none."""
        keys = [(w, s.device, s.sharing) for s in sets for w in s.workloads]
        size = np.array([len(s.workloads) for s in sets])
        mask = np.arange(solo_step_time_s.shape[1]) < size[:, None]
        result = np.full(mask.shape, -1, dtype=np.int64)
        result[mask] = self._known.numbers(keys, solo_step_time_s[mask].tolist())
        return result

    @property
    def state(self) -> State:
        """What answers follow from, given all observations; computed lazily and incrementally from the previous one."""
        state = self._state
        if state is None:
            state = self._state = State.of(
                self.predictor, self.observed, self._known, self.config, self._earlier, self.measured, self.only_ran,
                self.ran_out, priors=self._priors, labels=self._labels, expected_sets=self._expected_sets,
            )  # fmt: skip
            self._earlier = None
        return state

    @property
    def process(self) -> Process:
        """The process conditioned on all observations."""
        return self.state.process

    def corrects_solo(self, members: Integers) -> Bools:
        """[R] whether solo step times of members, by number, are predictions."""
        return np.asarray(self._known.solo_predicted[members] & self.config.learn_solo)

    @property
    def members(self) -> Members:
        """The members seen so far; rows of the process refer to them by number."""
        return self._known.members

    def rows_of(self, sets: Sequence[ColocationSet]) -> tuple[Rows, Floats]:
        """Rows of the process for all members of some sets, set by set, and their corrected log slowdowns."""
        sets, _ = self.state.measured.told_sets(sets)
        arrays = self.state.predictor.predict_arrays(sets)
        numbers = self._numbers(sets, arrays.solo_step_time_s)
        present = numbers >= 0
        own = numbers[present]
        rows = Rows(own, partners_of(own, np.nonzero(present)[0]))
        slowdown = self.state.corrections.slowdown(arrays.slowdown, numbers)
        return rows, np.log(slowdown[present])

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        """See `SetPredictor`; slowdowns, predicted solo step times and memory are corrected."""
        if self.knows_nothing or not len(sets):
            return self.predictor.predict_arrays(sets)
        state = self.state
        sets, _ = state.measured.told_sets(sets)
        arrays = state.predictor.predict_arrays(sets)
        numbers = self._numbers(sets, arrays.solo_step_time_s)
        sharing = np.array([s.sharing for s in sets])
        related = state.related.of_sets(sets, numbers, self.predict_arrays)
        parts = slowdown_of_parts(sets, state.predictor)
        corrected = self._corrected(arrays, numbers, parts, sharing, related)
        places, most = self._time_sliced(sets)
        return no_slower(corrected, places, most) if places else corrected

    def _time_sliced(self, sets: Sequence[ColocationSet]) -> tuple[list[int], Floats]:
        """Numbers of the sets that `bounded_sets` names, and their slowdowns [P, M] time-sliced."""
        places = bounded_sets(sets, self.predictor, self.state.under_mps)
        sliced = [replace(sets[k], sharing="time-slice") for k in places]
        return places, self.predict_arrays(sliced).slowdown if places else np.zeros((0, 1))

    def rows(self, sets: Sequence[ColocationSet]) -> Integers:
        """[S, M] rows of the predictor's job table, for `predict_rows`."""
        return np.asarray(self._table_of().rows(sets))

    def predict_rows(self, rows: Integers, sharing: str) -> PredictionArrays:
        """Like `predict_arrays`, for rows cached by the caller (the fastest entry point)."""
        if self.knows_nothing or not len(rows):
            answer: PredictionArrays = self._table_of().predict_rows(rows, sharing)
            return answer
        table, state = self._table_of().table_, self.state
        rows = state.told_table(rows)
        arrays = state.predictor.predict_rows(rows, sharing)
        # Read once, because other threads extend them too.
        known, count = self._of_row, len(table.keys)
        if len(known) < count:
            steps = table.solo_step_s[len(known) : count]
            more = self._known.numbers(table.keys[len(known) : count], steps.tolist())
            known = self._of_row = np.concatenate([known, np.array(more, dtype=np.int64)])
        numbers = known[rows]
        if (rows < 0).any():
            numbers = np.where(rows >= 0, numbers, -1)
        related = state.related.of_rows(rows, numbers, table, lambda told: self.predict_rows(told, sharing))
        parts, modes = of_rows(rows, sharing, state.predictor), np.full(len(rows), sharing)
        corrected = self._corrected(arrays, numbers, parts, modes, related)
        places = bounded_rows(rows, sharing, self.predictor, state.under_mps)
        if not places:
            return corrected
        sliced = self.predict_rows(table.time_sliced(rows[places]), "time-slice")
        return no_slower(corrected, places, sliced.slowdown)

    def _table_of(self) -> Any:
        if not hasattr(self.predictor, "predict_rows"):
            raise InputError("the predictor stores no training rows", hint="use predict_arrays")
        return self.predictor

    def _corrected(
        self, arrays: PredictionArrays, numbers: Integers, parts: SlowdownOf, sharing: NDArray[np.str_],
        related: tuple[Integers, Floats],
    ) -> PredictionArrays:  # fmt: skip
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
        return self.state.room.arrays(result, numbers, sharing)

    def predict(self, colocation_set: ColocationSet) -> Prediction:
        """One set, with intervals and reasons."""
        return self.predict_many([colocation_set])[0]

    def predict_many(self, sets: Sequence[ColocationSet]) -> list[Prediction]:
        """Several sets, with intervals and reasons; the predictor must support these too.

        Raises:
            UnknownNameError: unknown model or device.
        """
        predictor: Any = self.predictor
        if self.knows_nothing or not len(sets):
            return list(predictor.predict_many(sets))
        state = self.state
        told, notes = state.measured.told_sets(sets)
        return self._correct(state.unweighted.predict_many(told), told, notes)

    def never_measured(self, sets: Sequence[ColocationSet]) -> list[list[str]]:
        """See `predictor.answering.never_measured`; what was observed of jobs alone was measured."""
        told = sets if self.knows_nothing else self.state.measured.told_sets(sets)[0]
        return [never_measured(self.predictor, [each]) for each in told]

    def _correct(
        self,
        predictions: Sequence[Prediction],
        sets: Sequence[ColocationSet],
        notes: Sequence[Notes],
    ) -> list[Prediction]:
        """The predictor's predictions with corrections applied; their intervals are those of `Corrector`.

        Args:
            predictions: of `sets`.
            sets: as asked, with what was observed of their jobs alone stated.
            notes: per set, what that was.
        """
        members = [member for prediction in predictions for member in prediction.members]
        number = iter(
            self._known.numbers(
                [(w, s.device, s.sharing) for s in sets for w in s.workloads],
                [member.solo_step_time_s.value for member in members],
            )
        )
        numbers = [list(islice(number, len(s.workloads))) for s in sets]
        keys = [(own, *sorted((*row[:m], *row[m + 1 :]))) for row in numbers for m, own in enumerate(row)]
        state = self.state
        shifts = state.shifts.of(keys)
        if state.predictor is not state.unweighted:
            weighted = state.predictor.predict_arrays(sets)
            slowdown = weighted.slowdown[weighted.mask].tolist()
            shifts = list(map(self._corrector.reweighed, shifts, members, slowdown))
        least_solo_s = state.limits.least_s(np.array([key[0] for key in keys])).tolist()
        slowest, most = state.parts.slowest(sets, numbers), state.pair_bounds.of_keys(keys)
        for k, slowdown in state.related.of_members(sets, numbers, self.predict_arrays):
            shifts[k] = self._corrector.at_slowdown(shifts[k], members[k], slowdown)
            slowest[k] = most[k] = slowdown
        after = map(self._corrector, members, shifts, slowest, most, least_solo_s)
        shift = iter(shifts)
        of_memory = state.memory_words(sets)
        places, bounds = self._time_sliced(sets)
        sliced = dict(zip(places, bounds.tolist(), strict=True))
        result = []
        for k, (colocation_set, prediction) in enumerate(zip(sets, predictions, strict=True)):
            now = tuple(islice(after, len(prediction.members)))
            now = members_bounded(now, colocation_set.sharing, sliced.get(k))
            moved = zip(colocation_set.workloads, prediction.members, now, shift, strict=False)
            reasons = [reason_of(w.model, was, member, s.basis) for w, was, member, s in moved]
            now, told = notes[k].as_asked(now), notes[k].reasons
            busy = within_shares(prediction.total_utilization_ratio, now)
            ignored = state.limits.ignored_of(numbers[k])
            words = (*prediction.reasons, *told, *ignored, *filter(None, reasons), *of_memory[k])
            result.append(replace(prediction, members=now, total_utilization_ratio=busy, reasons=words))
        return state.room.predictions(result, numbers)

    def basis(self, colocation_set: ColocationSet, member: int) -> Basis:
        """The basis of a member's answer. Observations count with at least a hundredth of the largest weight."""
        if self.knows_nothing:
            return Basis(0, ())
        sets, _ = self.state.measured.told_sets([colocation_set])
        row = self._numbers(sets, self.predictor.predict_arrays(sets).solo_step_time_s)[0].tolist()
        key = (row[member], *sorted(number for m, number in enumerate(row) if m != member and number >= 0))
        return self.state.shifts.basis(key)
