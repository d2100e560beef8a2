"""Corrections of every job beside every other one, computed once, so that a batch of sets only looks them
up."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats
from predictor.gaussian_process.kernel import Members
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
    """Posterior means by member.

    Args:
        process: of slowdowns, conditioned on the observations. Nothing here outlives it.
        solo_errors: of solo step times; limits: of these.
        stated: what `process` says of jobs whose solo step times were stated since.
        pair_bounds: largest slowdowns of pairs.
    """

    def __init__(
        self,
        process: Process,
        solo_errors: SoloErrors,
        limits: SoloLimits,
        stated: StatedAlone,
        pair_bounds: PairBounds,
    ) -> None:
        self.process, self.solo_errors, self._limits = process, solo_errors, limits
        self._stated, self._pair_bounds = stated, pair_bounds
        self._blocks = PairBlocks(process)
        self._solo: Floats = np.zeros(0)
        self._lock = threading.Lock()

    def solo(self, members: Members) -> Floats:
        """[V] error of the predicted log solo step time of all members."""
        with self._lock:
            if len(self._solo) < len(members):
                new = np.arange(len(self._solo), len(members))
                error = self._limits.within(new, self.solo_errors.mean_of(members, new))
                self._solo = np.concatenate([self._solo, error])
            return self._solo[: len(members)]  # another thread may have come with more

    def slowdown(self, members: Members, slowdown: Floats, rows: Integers) -> Floats:
        """[S, M] corrected slowdowns of the members `rows` [S, M], given the predicted ones."""
        observed = len(self.process.evidence.rows)
        correction = self._blocks.of_sets(members, rows) if observed else np.zeros(rows.shape)
        correction = self._stated.with_sets(self._stated.corrected(correction, rows), rows)
        return self._pair_bounds.within(shifted(slowdown, correction, self.process.parameters.knee), rows)

    def confirmed(self, members: Members, rows: Integers) -> Bools:
        """See `ObservedSets.confirmed`."""
        return self.process.sets.confirmed(members, rows)
