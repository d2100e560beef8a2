"""A process's corrections for members beside their partners, with the observations behind them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap
from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats
from predictor.learning.answers.basis import Bases, Label
from predictor.learning.answers.corrector import Basis, Shift
from predictor.learning.answers.pair_answers import Key, PairAnswers, Places
from predictor.learning.evidence.observed import Observed

if TYPE_CHECKING:
    from predictor.examples.examples import Integers


class Shifts:
    """Corrections for one state of a posterior.

    Args:
        pairs: answers of its process.
        observed: the observations.
        rows: numbers in `observed` of the rows that the process uses.
        labels: cache of the rows of `observed` in words.
    """

    def __init__(
        self, pairs: PairAnswers, observed: Observed, rows: Integers, labels: dict[int, Label]
    ) -> None:
        self._pairs, self._bases = pairs, Bases(observed, rows, labels)

    def of(self, keys: Sequence[Key]) -> list[Shift]:
        """Shift of each key; its basis names only the heaviest influence."""
        answers = self._pairs.beside(keys)
        numbers = zip(
            answers.mean,
            answers.variance,
            answers.prior_variance,
            answers.solo,
            answers.solo_variance,
            answers.solo_prior_variance,
            answers.covariance,
            self._bases.of(answers.added, most=1),
            strict=True,
        )
        return list(starmap(Shift, numbers))

    def basis(self, key: Key) -> Basis:
        """Basis of a key's shift, with all named influences."""
        return self._bases.of(self._pairs.beside([key]).added)[0]


def rows_in_answers(
    rows: Integers, confirmed: Integers, sets: Integers, solo_rows: Integers, jobs: Integers, count: int
) -> tuple[Integers, Places, Floats]:
    """The rows of the observations that answers are put down to.

    Args:
        rows: those that the process uses; confirmed: those of confirmed pairs; sets: those of observed sets, which may
            be too many to be told apart where the process does without their rows.
        solo_rows: those that solo step times are from; jobs: the number of the job of each, in ascending order.
        count: of these jobs.

    Returns:
        the rows, the places of the others among them, and the share [count, rows] of each in what a job adds.
    """
    # One row of a job at least, so that it is named even if the process does without its rows.
    first = solo_rows[np.flatnonzero(np.diff(jobs, prepend=-1))]
    used = np.unique(np.concatenate([rows, confirmed, first]))
    named = np.isin(solo_rows, used)
    job, place = jobs[named], np.searchsorted(used, solo_rows[named])
    shares = np.zeros((count, len(used)))
    shares[job, place] = 1.0 / np.bincount(job, minlength=count)[job]
    of_sets = np.where(np.isin(sets, used), np.searchsorted(used, sets), -1)
    return used, Places(np.searchsorted(used, rows), np.searchsorted(used, confirmed), of_sets), shares
