"""A fitted predictor corrected by observations, without refitting.

The predictor is the prior mean of a Gaussian process (`predictor.gaussian_process.kernel`) over the log excess of a
slowdown; predicted solo step times are corrected first (`predictor.learning.evidence.step_times`). A posterior depends only
on the set of observations, not on their order or how they were split over calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from models.features import Floats
from predictor.answering.never_measured import never_measured
from predictor.examples.observations import Observation, R, Report, apart
from predictor.examples.out_of_memory import OutOfMemory
from predictor.gaussian_process.kernel import Members
from predictor.gaussian_process.known_members import KnownMembers
from predictor.gaussian_process.members import default_scale
from predictor.gaussian_process.process import Process
from predictor.gaussian_process.rows import Rows
from predictor.learning.answers.basis import Basis, Label
from predictor.learning.corrected_predictor import CorrectedPredictor
from predictor.learning.evidence.config import PosteriorConfig
from predictor.learning.evidence.expected_sets import ExpectedSets
from predictor.learning.evidence.measured_alone import MeasuredAlone
from predictor.learning.evidence.observed import Expected, Observed, by_name, by_name_of_set, set_of
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
        self.observed = self.only_ran = self.ran_out = Observed.nothing()
        self.measured = MeasuredAlone(spelled=self._known.spelled)
        self._state: State | None = None
        self._earlier: State | None = None
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
        ran_out = self.ran_out.with_rows(by_name_of_set(out), self._expected)
        self.observed, self.measured, self.ran_out = self._and(self.observed, new), alone, ran_out
        self._outdated()

    def ran(self, observations: Iterable[Observation]) -> None:
        """Take in only that the sets of observations ran, those that it was trained on; unknown jobs are skipped."""
        if some := _predictable(self.predictor, list(observations)):
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
        some = _predictable(self.predictor, kept)
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
        return observed.with_rows(named, self._expected).with_step_times(values)

    def _expected(self, sets: Sequence[ColocationSet]) -> tuple[Integers, Expected]:
        expected = Expected.of(self.predictor, sets)
        return self._known.of_sets(sets, expected.solo_step_time_s), expected

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

    @property
    def _corrected(self) -> CorrectedPredictor:
        return CorrectedPredictor(self.state, self._known)

    def rows_of(self, sets: Sequence[ColocationSet]) -> tuple[Rows, Floats]:
        """Rows of the process for all members of some sets, set by set, and their corrected log slowdowns."""
        return self._corrected.rows_of(sets)

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        """See `SetPredictor`; slowdowns, predicted solo step times and memory are corrected."""
        if self.knows_nothing or not len(sets):
            return self.predictor.predict_arrays(sets)
        return self._corrected.predict_arrays(sets)

    def rows(self, sets: Sequence[ColocationSet]) -> Integers:
        """[S, M] rows of the predictor's job table, for `predict_rows`."""
        return np.asarray(self._with_table().rows(sets))

    def predict_rows(self, rows: Integers, sharing: str) -> PredictionArrays:
        """Like `predict_arrays`, for rows cached by the caller (the fastest entry point)."""
        predictor = self._with_table()
        if self.knows_nothing or not len(rows):
            answer: PredictionArrays = predictor.predict_rows(rows, sharing)
            return answer
        return self._corrected.predict_rows(rows, sharing)

    def _with_table(self) -> Any:
        """The predictor. Raises `InputError` if it has no job table."""
        if not hasattr(self.predictor, "predict_rows"):
            raise InputError("the predictor stores no training rows", hint="use predict_arrays")
        return self.predictor

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
        return self._corrected.predict_many(sets)

    def never_measured(self, sets: Sequence[ColocationSet]) -> list[list[str]]:
        """See `predictor.answering.never_measured`; what was observed of jobs alone was measured."""
        told = sets if self.knows_nothing else self.state.measured.told_sets(sets)[0]
        return [never_measured(self.predictor, [each]) for each in told]

    def basis(self, colocation_set: ColocationSet, member: int) -> Basis:
        """The basis of a member's answer. Observations count with at least a hundredth of the largest weight."""
        return Basis(0, ()) if self.knows_nothing else self._corrected.basis(colocation_set, member)


def _predictable(predictor: SetPredictor, observations: Sequence[R]) -> list[R]:
    """Those of sets that the predictor has an answer for."""
    members = {(o.colocation_set.device, w) for o in observations for w in o.colocation_set.workloads}
    unknown = {(device, w) for device, w in members if not _answers(predictor, [ColocationSet(device, (w,))])}
    kept = [
        o
        for o in observations
        if unknown.isdisjoint((o.colocation_set.device, w) for w in o.colocation_set.workloads)
    ]
    sets = {o.colocation_set for o in kept}
    if kept and not _answers(predictor, list(sets)):
        sets = {s for s in sets if _answers(predictor, [s])}
    return [o for o in kept if o.colocation_set in sets]


def _answers(predictor: SetPredictor, sets: Sequence[ColocationSet]) -> bool:
    try:
        predictor.predict_arrays(sets)
    except CotenantError:
        return False
    return True
