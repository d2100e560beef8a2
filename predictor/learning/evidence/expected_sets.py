"""What was expected of observed sets, with the weight of the predictor's networks that was learned.

For pairs, slowdowns with any weight follow from those with two. Larger sets are bounded by their parts, which makes that
wrong by several per cent, so they are predicted anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from models.features import Floats
from predictor.gaussian_process.link import to_scale
from predictor.gaussian_process.set_process import NETWORK_SHARE
from predictor.learning.evidence.measured_alone import MeasuredAlone
from predictor.learning.evidence.observed import Observed, set_of

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

# Cached sets, beyond which the cache is emptied.
_KEPT = 100_000


class ExpectedSets:
    """Caches predicted slowdowns of sets of three or more.

    Args:
        knee: as for `predictor.gaussian_process.link.to_scale`.
    """

    def __init__(self, knee: float) -> None:
        self._knee = knee
        # By weight, number of the member, and numbers of its partners.
        self._known: dict[tuple[float, ...], float] = {}

    def of(
        self, told: Observed, rows: Integers, share: float, weighted: Any, measured: MeasuredAlone
    ) -> Floats:
        """[R] slowdowns expected of rows of `told`, on the scale of `predictor.gaussian_process.link`.

        Args:
            told: the observations, with the numbers of the members as the predictor is told of them.
            rows: [R] numbers of rows.
            share: weight of the networks in `weighted`, a predictor.
            measured: what the predictor is told.
        """
        result = told.expected(rows, self._knee, share)
        large = np.flatnonzero((told.partners[rows] >= 0).sum(1) > 1)
        if share == NETWORK_SHARE or not len(large):
            return result
        some = rows[large]
        numbers = np.concatenate([told.own[some, None], told.partners[some]], 1).tolist()
        keys = [(share, *[float(n) for n in row if n >= 0]) for row in numbers]
        known = self._known if len(self._known) + len(keys) <= _KEPT else {}
        if new := {key: row for key, row in zip(keys, some.tolist(), strict=True) if key not in known}:
            sets, _ = measured.told_sets([set_of(told.keys[row]) for row in new.values()])
            slowdown = weighted.predict_arrays(sets).slowdown[:, 0].tolist()
            known = self._known = {**known, **dict(zip(new, slowdown, strict=True))}
        slowdowns = np.array([known[key] for key in keys])
        result[large] = to_scale(np.log(np.maximum(slowdowns, 1.0)), self._knee)
        return result
