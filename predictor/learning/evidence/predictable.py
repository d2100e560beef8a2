"""Observations that a predictor can predict."""

from __future__ import annotations

from collections.abc import Sequence

from predictor.examples.observations import R
from predictor.types import SetPredictor
from profiling.errors import CotenantError
from profiling.workload import ColocationSet


def predictable(predictor: SetPredictor, observations: Sequence[R]) -> list[R]:
    """Those of sets that the predictor has an answer for."""
    members = {(o.colocation_set.device, w) for o in observations for w in o.colocation_set.workloads}
    unknown = {(device, w) for device, w in members if not _answers(predictor, [ColocationSet(device, (w,))])}
    kept = [
        o
        for o in observations
        if unknown.isdisjoint((o.colocation_set.device, w) for w in o.colocation_set.workloads)
    ]
    sets = {o.colocation_set for o in kept}
    if kept and not _answers(predictor, list(sets)):
        sets = {s for s in sets if _answers(predictor, [s])}
    return [o for o in kept if o.colocation_set in sets]


def _answers(predictor: SetPredictor, sets: Sequence[ColocationSet]) -> bool:
    try:
        predictor.predict_arrays(sets)
    except CotenantError:
        return False
    return True
