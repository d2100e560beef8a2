"""Corrected answers about sets of three and more, which are at least those about their pairs.

What was observed of one pair is a part of the mean over a member's partners, so that a third job would take some of it away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from models.features import Floats
from predictor.answering.bounds import never_faster_with_more
from predictor.answering.set_network import padded
from predictor.learning.corrected import slowed

if TYPE_CHECKING:
    from predictor.examples.examples import Integers
    from predictor.types import MemberPrediction, Prediction
    from profiling.workload import ColocationSet

# Slowdowns [P, K] of parts of sets as the predictor has them, from the numbers of the sets [P] and places in them [P, K].
SlowdownOf = Callable[["Integers", "Integers"], Floats]
# Corrected slowdowns of slowdowns and numbers of members, each [P, K].
Corrected = Callable[[Floats, "Integers"], Floats]


def slowdown_of_parts(sets: Sequence[ColocationSet], predictor: Any) -> SlowdownOf:
    """A predictor's slowdowns of parts of `sets`: by rows where it keeps them and the sets share a mode, else as sets of their own."""
    if hasattr(predictor, "table_") and len({s.sharing for s in sets}) == 1:
        return of_rows(np.asarray(predictor.rows(sets)), sets[0].sharing, predictor)

    def slowdown_of(chosen: Integers, places: Integers) -> Floats:
        parts = [
            replace(sets[s], workloads=tuple(sets[s].workloads[m] for m in row))
            for s, row in zip(chosen.tolist(), places.tolist(), strict=True)
        ]
        return np.asarray(predictor.predict_arrays(parts).slowdown)

    return slowdown_of


def of_rows(rows: Integers, sharing: str, predictor: Any) -> SlowdownOf:
    """As `slowdown_of_parts`, of sets whose rows [S, M] in the predictor's table are known."""

    def slowdown_of(chosen: Integers, places: Integers) -> Floats:
        parts = np.take_along_axis(rows[chosen], places, 1)
        return 1.0 + np.asarray(predictor.table_.excess(parts, sharing))

    return slowdown_of


def as_slow_as_parts(
    members: list[MemberPrediction],
    predictions: Sequence[Prediction],
    sets: Sequence[ColocationSet],
    numbers: Sequence[Sequence[int]],
    predictor: Any,
    corrected: Corrected,
) -> list[MemberPrediction]:
    """Corrected members of some sets, one after another, those of sets of three and more as slow as `slowest_part` has them.

    Args:
        members: changed in place.
        predictions: of the sets, before any correction.
        numbers: of the members of each set.
        predictor, corrected: as of `slowest_part`.
    """
    first = list(accumulate(map(len, numbers), initial=0))
    for mode in {s.sharing for s in sets}:
        large = [k for k, s in enumerate(sets) if len(s.workloads) > 2 and s.sharing == mode]
        if not large:
            continue
        before = padded([[m.slowdown.value for m in predictions[k].members] for k in large], 1.0)
        slowdown_of = slowdown_of_parts([sets[k] for k in large], predictor)
        slowdown = slowest_part(before, padded([numbers[k] for k in large]), slowdown_of, corrected)
        for k, row in zip(large, slowdown.tolist(), strict=True):
            for place, value in enumerate(row[: len(numbers[k])], first[k]):
                members[place] = slowed(members[place], value)
    return members


def slowest_part(
    slowdown: Floats,
    numbers: Integers,
    slowdown_of: SlowdownOf,
    corrected: Corrected,
) -> Floats:
    """[S, M] corrected slowdowns of sets, each at least that beside any one of the neighbours.

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

    # Larger parts are as slow as their pairs, and cost several times as much to ask about.
    return 1.0 + never_faster_with_more(excess, whole, (2,))
