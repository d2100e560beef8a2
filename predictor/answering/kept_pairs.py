"""Answers about pairs, kept: a few jobs meet again and again, on GPUs of their own and as parts of larger sets."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from models.features import Floats
from predictor.examples.examples import Integers

# Larger calls are answered sooner than looked up.
MOST_ASKED = 256
# Beyond which what is kept is given up, and begun anew.
_MOST_KEPT = 50_000


class KeptPairs:
    """`answer` for sets of two, each asked once; rows of the job table keep their meaning."""

    def __init__(self, answer: Callable[[Integers], Floats]) -> None:
        self._answer = answer
        self._known: dict[tuple[int, int], list[float]] = {}

    def __call__(self, rows: Integers) -> Floats:
        """[S, 2] from rows [S, 2], no -1 among them."""
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
