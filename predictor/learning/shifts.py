"""What a process says of members beside their partners, worked out once for each until something new is observed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap
from typing import TYPE_CHECKING

from predictor.learning.basis import Bases, Label
from predictor.learning.corrected import Basis, Shift
from predictor.learning.observed import Observed
from predictor.learning.pair_answers import Key, PairAnswers

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

_KEPT = 50_000


class Shifts:
    """Of one state of a posterior.

    Args:
        pairs: of its process.
        observed: what was observed.
        rows: numbers in `observed` of the rows that the process uses.
        labels: of rows of `observed` in words; grows.
    """

    def __init__(
        self, pairs: PairAnswers, observed: Observed, rows: Integers, labels: dict[int, Label]
    ) -> None:
        self._pairs, self._bases = pairs, Bases(observed, rows, labels)
        self._shifts: dict[Key, Shift] = {}

    def of(self, asked: Sequence[Key]) -> dict[Key, Shift]:
        """At least those that were asked for; a basis names the heaviest influence alone."""
        shifts = self._shifts
        new = [key for key in dict.fromkeys(asked) if key not in shifts]
        if not new:
            return shifts
        if len(shifts) > _KEPT:
            # Another object: who reads the old one goes on with it.
            shifts = self._shifts = {key: shifts[key] for key in asked if key in shifts}
        answers = self._pairs.beside(new)
        numbers = zip(
            answers.mean,
            answers.variance,
            answers.prior_variance,
            answers.solo,
            answers.solo_shrink,
            self._bases.of(answers.added, most=1),
            strict=True,
        )
        shifts.update(zip(new, starmap(Shift, numbers), strict=True))
        return shifts

    def basis(self, key: Key) -> Basis:
        """What a shift stands on, with all influences that are named."""
        return self._bases.of(self._pairs.beside([key]).added)[0]
