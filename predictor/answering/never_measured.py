"""What was never measured of the sets behind an answer, for answers that are not predictions themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from profiling.workload import ColocationSet


def never_measured(predictor: Any, sets: Sequence[ColocationSet]) -> list[str]:
    """Aspects of these sets that were never measured, in words, each once.

    Args:
        predictor: a predictor of any kind; one without `predict_many` (a table, a user's own) says nothing.
        sets: the sets behind an answer.
    """
    predict = getattr(predictor, "predict_many", None)
    if predict is None or not sets:
        return []
    return list(dict.fromkeys(reason for answer in predict(sets) for reason in answer.never_measured))
