"""What a process says of members beside their partners, with what it stands on."""

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

    def of(self, keys: Sequence[Key]) -> list[Shift]:
        """Of each key; a basis names the heaviest influence alone."""
        answers = self._pairs.beside(keys)
        numbers = zip(
            answers.mean,
            answers.variance,
            answers.prior_variance,
            answers.solo,
            answers.solo_shrink,
            self._bases.of(answers.added, most=1),
            strict=True,
        )
        return list(starmap(Shift, numbers))

    def basis(self, key: Key) -> Basis:
        """What a shift stands on, with all influences that are named."""
        return self._bases.of(self._pairs.beside([key]).added)[0]
