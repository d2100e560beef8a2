"""Corrections as arrays: of every job beside every other one, computed once, so that a batch of sets only looks them up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats
from predictor.gaussian_process.known_members import ByMember, KnownMembers
from predictor.gaussian_process.pair_table import PairBlocks
from predictor.gaussian_process.process import Process
from predictor.learning.answers.corrector import shifted
from predictor.learning.answers.pair_bounds import PairBounds
from predictor.learning.answers.stated_alone import StatedAlone
from predictor.learning.evidence.solo_errors import SoloErrors
from predictor.learning.evidence.solo_limits import SoloLimits
from predictor.types import Bools

if TYPE_CHECKING:
    from predictor.examples.examples import Integers


class Corrections:
    """Posterior means of slowdowns and solo step times.

    Args:
        process: of slowdowns, conditioned on the observations. Nothing here outlives it.
        solo_errors: of solo step times; limits: of these.
        stated: what `process` says of jobs whose solo step times were stated since.
        pair_bounds: largest slowdowns of pairs.
        known: the members that arguments number, -1 where a set has fewer.
    """

    def __init__(
        self,
        process: Process,
        solo_errors: SoloErrors,
        limits: SoloLimits,
        stated: StatedAlone,
        pair_bounds: PairBounds,
        known: KnownMembers,
    ) -> None:
        self.process, self.solo_errors, self._limits = process, solo_errors, limits
        self._stated, self._pair_bounds, self._known = stated, pair_bounds, known
        self._blocks = PairBlocks(process)
        self._solo = ByMember(self._solo_of)

    def solo(self, numbers: Integers) -> Floats:
        """Errors of log solo step times, of any shape; 0 for those that were stated."""
        return np.where(numbers >= 0, self._solo.first(len(self._known.members))[numbers], 0.0)

    def _solo_of(self, numbers: Integers) -> Floats:
        error = self._limits.within(numbers, self.solo_errors.mean_of(self._known.members, numbers))
        return np.where(self._known.solo_predicted[numbers], error, 0.0)

    def slowdown(self, slowdown: Floats, numbers: Integers) -> Floats:
        """[S, M] corrected slowdowns of sets, given the predicted ones."""
        members, correction = self._known.members, np.zeros(numbers.shape)
        if len(self.process.evidence.rows):
            correction = self._blocks.of_sets(members, numbers)
        correction = self._stated.with_sets(self._stated.corrected(correction, numbers), numbers)
        knee = self.process.parameters.knee
        return self._pair_bounds.within(shifted(slowdown, correction, knee), numbers)

    def confirmed(self, numbers: Integers) -> Bools:
        """See `ObservedSets.confirmed`."""
        return self.process.sets.confirmed(self._known.members, numbers)
