"""Caches of answers about pairs, because a few jobs recur often, in pairs and as parts of larger sets."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np

from models.features import Floats
from predictor.examples.examples import Integers

# Larger calls are faster to compute than to look up.
MOST_ASKED = 256
# Above this size the cache is cleared.
_MOST_KEPT = 50_000
_MOST_ROWS = 2**31  # of a table, so that two numbers fit in one


class KeptPairs:
    """`answer` for sets of two, from rows [P, 2] to [P, ...], cached; rows of the job table never change their meaning."""

    def __init__(self, answer: Callable[[Integers], Floats]) -> None:
        self._answer = answer
        self._known: dict[tuple[int, int], list[float]] = {}

    def __call__(self, rows: Integers) -> Floats:
        """[P, ...] from rows [P, 2] without -1."""
        keys = [(a, b) for a, b in rows.tolist()]
        found = {key: self._known.get(key) for key in keys}
        lacking = [key for key, value in found.items() if value is None]
        if lacking:
            new = dict(zip(lacking, self._answer(np.array(lacking)).tolist(), strict=True))
            if len(self._known) > _MOST_KEPT:
                self._known = {}
            self._known.update(new)
            found.update(new)
        return np.array([found[key] for key in keys], dtype=np.float64)


class PairsWithin:
    """`answer` for the pairs within sets of one call, each computed once.

    Args:
        answer: from rows [P, 2] without -1 to [P, 2, ...], independent of the order of members.
        rows: [S, M] the sets, -1 where one has fewer members.
    """

    def __init__(self, answer: Callable[[Integers], Floats], rows: Integers) -> None:
        pairs = rows[:, list(combinations(range(rows.shape[1]), 2))].reshape(-1, 2)
        keys, _ = self._keys(pairs[(pairs >= 0).all(1)])
        self._known = np.unique(keys)
        self._values = answer(np.column_stack(np.divmod(self._known, _MOST_ROWS)))

    def __call__(self, pairs: Integers) -> Floats:
        """[P, 2, ...] from rows [P, 2] of pairs within the sets."""
        keys, swapped = self._keys(pairs)
        values = self._values[np.searchsorted(self._known, keys)]
        values[swapped] = values[swapped][:, ::-1]
        return values

    @staticmethod
    def _keys(pairs: Integers) -> tuple[Integers, np.ndarray]:
        first, second = pairs.T
        return np.minimum(first, second) * _MOST_ROWS + np.maximum(first, second), first > second
