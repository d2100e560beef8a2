"""Corrected answers about sets of three and more, which are at least those about their parts.

What was observed of one pair is a part of the mean over a member's partners, so that a third job would take some of it away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats
from predictor.answering.bounds import never_faster_with_more

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

# Slowdowns [P, K] of parts of sets as the predictor has them, from the numbers of the sets [P] and places in them [P, K].
SlowdownOf = Callable[["Integers", "Integers"], Floats]


def slowest_part(
    slowdown: Floats,
    numbers: Integers,
    slowdown_of: SlowdownOf,
    corrected: Callable[[Floats, Integers], Floats],
) -> Floats:
    """[S, M] corrected slowdowns of sets, each at least that beside a part of the neighbours.

    Args:
        slowdown: [S, M] as the predictor has them.
        numbers: [S, M] of members, -1 where a set has fewer.
        slowdown_of: the predictor's for parts of these sets.
        corrected: of slowdowns and numbers of members, each [P, K].
    """
    sets, width = numbers.shape
    if width < 3:
        return corrected(slowdown, numbers)
    whole = np.where(numbers >= 0, np.arange(sets * width).reshape(sets, width), -1)

    def excess(parts: Integers) -> Floats:
        if parts is whole:
            return corrected(slowdown, numbers) - 1.0
        return corrected(slowdown_of(parts[:, 0] // width, parts % width), numbers.ravel()[parts]) - 1.0

    return 1.0 + never_faster_with_more(excess, whole)
