"""Corrected answers about sets of three or more, bounded below by those about their pairs.

An observed pair contributes to the mean over a member's partners, so without the bound a third job would
dilute it. There is no bound under MIG, where another partition may give a job a smaller slice in a pair, nor of sets that
were themselves observed often.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from models.features import Floats
from predictor.answering.bounds import never_faster_with_more
from predictor.padding import padded
from predictor.types import Bools

if TYPE_CHECKING:
    from predictor.examples.examples import Integers
    from profiling.workload import ColocationSet

# Predicted slowdowns [P, K] of parts of sets, from the numbers of the sets [P] and positions in them [P, K].
SlowdownOf = Callable[["Integers", "Integers"], Floats]
# Corrected slowdowns from slowdowns and member numbers, each [P, K].
Corrected = Callable[[Floats, "Integers"], Floats]
# Cached ordered pairs, beyond which the cache is emptied.
_KEPT = 50_000


def slowdown_of_parts(sets: Sequence[ColocationSet], predictor: Any) -> SlowdownOf:
    """A predictor's slowdowns of parts of `sets`.

    They are looked up by row if the predictor has a job table and the sets share a sharing mode; otherwise
    each part is predicted as a set.
    """
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
    """Like `slowdown_of_parts`, for sets whose rows [S, M] in the predictor's table are known."""

    def slowdown_of(chosen: Integers, places: Integers) -> Floats:
        parts = np.take_along_axis(rows[chosen], places, 1)
        return 1.0 + np.asarray(predictor.table_.excess(parts, sharing, predictor.network_share))

    return slowdown_of


class PairSlowdowns:
    """A cache of corrected slowdowns of pairs, because scheduling queries a few jobs in ever new sets.

    Args:
        predictor: queried for new pairs.
        corrected: corrects its slowdowns, given member numbers, each [P, 2].
        confirmed: [S, M] whether sets of three or more, as numbers of their members [S, M], were observed often;
            None if no such sets were.
    """

    def __init__(
        self, predictor: Any, corrected: Corrected, confirmed: Callable[[Integers], Bools] | None = None
    ) -> None:
        self._predictor, self._corrected, self._confirmed = predictor, corrected, confirmed
        self._known: dict[tuple[int, int], float] = {}

    def slowest(self, sets: Sequence[ColocationSet], numbers: Sequence[Sequence[int]]) -> list[float]:
        """Slowdown of every member beside its worst neighbour, set by set; 1 in sets of up to two, in those observed
        often, and under MIG.

        Args:
            sets: co-location sets.
            numbers: member numbers of each set.
        """
        try:
            return self._looked_up(numbers, self._known)
        except KeyError:
            return self._looked_up(numbers, self._met(sets, numbers))

    def _looked_up(
        self, numbers: Sequence[Sequence[int]], known: Mapping[tuple[int, int], float]
    ) -> list[float]:
        slowest, large = list[float](), list[tuple[int, Sequence[int]]]()
        for row in numbers:
            if len(row) < 3:
                slowest += [1.0] * len(row)
                continue
            large.append((len(slowest), row))
            for place, own in enumerate(row):
                slowest.append(max([known[own, other] for k, other in enumerate(row) if k != place]))
        if self._confirmed is not None and large:
            confirmed = self._confirmed(padded([row for _, row in large]))
            for k, column in np.argwhere(confirmed).tolist():
                slowest[large[k][0] + column] = 1.0
        return slowest

    def _met(
        self, sets: Sequence[ColocationSet], numbers: Sequence[Sequence[int]]
    ) -> dict[tuple[int, int], float]:
        """The cache with all pairs of these sets; another thread may replace it by one without them."""
        pairs = {
            (row[a], row[b]): replace(s, workloads=(s.workloads[a], s.workloads[b]))
            for s, row in zip(sets, numbers, strict=True)
            if len(row) > 2
            for a, b in combinations(range(len(row)), 2)
        }
        known = self._known if len(self._known) + 2 * len(pairs) <= _KEPT else {}
        pairs = {key: pair for key, pair in pairs.items() if key not in known}
        for a, b in [key for key, pair in pairs.items() if pair.sharing == "mig"]:
            known[a, b] = known[b, a] = 1.0
            del pairs[a, b]
        if pairs:
            arrays = self._predictor.predict_arrays(list(pairs.values()))
            slowdown = self._corrected(arrays.slowdown, np.array(list(pairs)))
            for (a, b), (of_a, of_b) in zip(pairs, slowdown.tolist(), strict=True):
                known[a, b], known[b, a] = of_a, of_b
        self._known = known
        return known


def slowest_part(
    slowdown: Floats,
    numbers: Integers,
    slowdown_of: SlowdownOf,
    corrected: Corrected,
    unbounded: Bools,
) -> Floats:
    """[S, M] corrected slowdowns of sets, each at least the slowdown beside any one of the neighbours.

    Args:
        slowdown: [S, M] predicted.
        numbers: [S, M] of members, -1 where a set has fewer.
        slowdown_of: predicts parts of these sets.
        corrected: corrects slowdowns, given member numbers, each [P, K].
        unbounded: [S, M] or [S, 1] whether that is not known: of sets on slices of their own, and of those observed often.
    """
    sets, width = numbers.shape
    if width < 3 or unbounded.all():
        return corrected(slowdown, numbers)
    whole = np.where(numbers >= 0, np.arange(sets * width).reshape(sets, width), -1)

    def excess(parts: Integers) -> Floats:
        if parts is whole:
            return corrected(slowdown, numbers) - 1.0
        return corrected(slowdown_of(parts[:, 0] // width, parts % width), numbers.ravel()[parts]) - 1.0

    # Larger subsets are as slow as their pairs, and cost several times as much to query.
    bounded = 1.0 + never_faster_with_more(excess, whole, (2,))
    return np.where(unbounded, corrected(slowdown, numbers), bounded) if unbounded.any() else bounded
