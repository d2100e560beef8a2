"""Corrected answers about sets of three or more, bounded below by those about their pairs and triples.

An observed pair contributes to the mean over a member's partners, so without the bound a third job would dilute it, and
a fourth one what three do to each other. There is no bound under MIG, where another partition may give a job a smaller
slice in a pair, nor of sets that were themselves observed often.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from models.features import Floats
from predictor.answering.bounds import PARTS_OF_LARGE, never_faster_with_more
from predictor.padding import padded
from predictor.types import Bools

if TYPE_CHECKING:
    from predictor.examples.examples import Integers
    from profiling.workload import ColocationSet

# Predicted slowdowns [P, K] of parts of sets, from the numbers of the sets [P] and positions in them [P, K].
SlowdownOf = Callable[["Integers", "Integers"], Floats]
# Corrected slowdowns from slowdowns and member numbers, each [P, K].
Corrected = Callable[[Floats, "Integers"], Floats]
# Cached members of parts, beyond which the cache is emptied.
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


class PartSlowdowns:
    """A cache of corrected slowdowns of pairs and triples, because scheduling queries a few jobs in ever new sets.

    Args:
        predictor: queried for new ones.
        corrected: corrects its slowdowns, given member numbers, each [P, K].
        confirmed: [S, M] whether sets of three or more, as numbers of their members [S, M], were observed often;
            None if no such sets were.
    """

    def __init__(
        self, predictor: Any, corrected: Corrected, confirmed: Callable[[Integers], Bools] | None = None
    ) -> None:
        self._predictor, self._corrected, self._confirmed = predictor, corrected, confirmed
        # By the member's number, then those of the others in ascending order.
        self._known: dict[tuple[int, ...], float] = {}

    def slowest(self, sets: Sequence[ColocationSet], numbers: Sequence[Sequence[int]]) -> list[float]:
        """Slowdown of every member in its worst part, set by set; 1 in sets of up to two, in those observed
        often, and under MIG.

        Args:
            sets: co-location sets.
            numbers: member numbers of each set.
        """
        try:
            return self._looked_up(numbers, self._known)
        except KeyError:
            return self._looked_up(numbers, self._with_parts(sets, numbers))

    def _looked_up(
        self, numbers: Sequence[Sequence[int]], known: Mapping[tuple[int, ...], float]
    ) -> list[float]:
        slowest, large = list[float](), list[tuple[int, Sequence[int]]]()
        for row in numbers:
            if len(row) > 2:
                large.append((len(slowest), row))
            most = [1.0] * len(row)
            for places in _parts_of(len(row)):
                part = [row[k] for k in places]
                for k, key in zip(places, _keys_of(part), strict=True):
                    most[k] = max(most[k], known[key])
            slowest += most
        if self._confirmed is not None and large:
            confirmed = self._confirmed(padded([row for _, row in large]))
            for k, column in np.argwhere(confirmed).tolist():
                slowest[large[k][0] + column] = 1.0
        return slowest

    def _with_parts(
        self, sets: Sequence[ColocationSet], numbers: Sequence[Sequence[int]]
    ) -> dict[tuple[int, ...], float]:
        """The cache with all parts of these sets; another thread may replace it by one without them."""
        parts = {
            tuple(row[k] for k in places): replace(s, workloads=tuple(s.workloads[k] for k in places))
            for s, row in zip(sets, numbers, strict=True)
            for places in _parts_of(len(row))
        }
        known = self._known if len(self._known) + sum(map(len, parts)) <= _KEPT else {}
        parts = {key: part for key, part in parts.items() if _keys_of(key)[0] not in known}
        for key in [key for key, part in parts.items() if part.sharing == "mig"]:
            known.update(dict.fromkeys(_keys_of(key), 1.0))
            del parts[key]
        if parts:
            arrays = self._predictor.predict_arrays(list(parts.values()))
            slowdown = self._corrected(arrays.slowdown, padded(list(parts)))
            for key, values in zip(parts, slowdown.tolist(), strict=True):
                known.update(zip(_keys_of(key), values, strict=False))
        self._known = known
        return known


@cache
def _parts_of(size: int) -> list[tuple[int, ...]]:
    """Places of the pairs and triples in larger sets."""
    return [part for count in PARTS_OF_LARGE if count < size for part in combinations(range(size), count)]


def _keys_of(part: Sequence[int]) -> list[tuple[int, ...]]:
    """Of each member of a part, its number, and those of the others in ascending order."""
    return [(own, *sorted((*part[:k], *part[k + 1 :]))) for k, own in enumerate(part)]


def slowest_part(
    slowdown: Floats,
    numbers: Integers,
    slowdown_of: SlowdownOf,
    corrected: Corrected,
    unbounded: Bools,
) -> Floats:
    """[S, M] corrected slowdowns of sets, each at least the slowdown beside any one or two of the neighbours.

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

    # Larger subsets than triples are hardly slower than these, and cost several times as much to query.
    bounded = 1.0 + never_faster_with_more(excess, whole, PARTS_OF_LARGE)
    return np.where(unbounded, corrected(slowdown, numbers), bounded) if unbounded.any() else bounded
