"""A cache of answers about pairs, because a few jobs recur often, in pairs and as parts of larger sets."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from models.features import Floats
from predictor.examples.examples import Integers

# Larger calls are faster to compute than to look up.
MOST_ASKED = 256
# Above this size the cache is cleared.
_MOST_KEPT = 50_000


class KeptPairs:
    """`answer` for sets of two, cached; rows of the job table never change their meaning."""

    def __init__(self, answer: Callable[[Integers], Floats]) -> None:
        self._answer = answer
        self._known: dict[tuple[int, int], list[float]] = {}

    def __call__(self, rows: Integers) -> Floats:
        """[S, 2] from rows [S, 2] without -1."""
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
