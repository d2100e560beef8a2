"""How far predictions were off, with and without the observations that preceded them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from predictor.examples.observations import Report, apart
from predictor.learning.posterior import Posterior


@dataclass(frozen=True, slots=True)
class Drift:
    """How far predictions were off: median |log observed / predicted|, 0.1 being about 10 %.

    Attributes:
        count: observations.
        before: without observations.
        after: with the earlier observations only, so none is judged by itself.
    """

    count: int
    before: float
    after: float


def drift_of(posterior: Posterior, observations: Sequence[Report]) -> Drift:
    """How far off the predictor of `posterior` was at observed step times, in order."""
    predictor = posterior.predictor
    kept = [
        o
        for o in apart(observations)[0]
        if len(o.colocation_set.workloads) > 1 or posterior.learns_solo(o.workload)
    ]
    if not kept:
        return Drift(0, 0.0, 0.0)
    sets, members = [o.colocation_set for o in kept], [o.member for o in kept]
    observed = np.log([o.step_time_s for o in kept])
    at = np.arange(len(kept)), members
    before = np.abs(observed - np.log(predictor.predict_arrays(sets).step_time_s[at]))
    after = before.copy()
    told = posterior.unobserved()
    # In growing steps, so that many observations take only some dozens of them.
    start = 0
    while start < len(kept):
        end = min(len(kept), start + max(1, start // 8))
        arrays = told.predict_arrays(sets[start:end])
        part = np.arange(end - start), members[start:end]
        after[start:end] = np.abs(observed[start:end] - np.log(arrays.step_time_s[part]))
        told.observe(kept[start:end])
        start = end
    return Drift(len(kept), float(np.median(before)), float(np.median(after)))
