"""What was never measured of the sets behind an answer, for answers that are not predictions themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from profiling.workload import ColocationSet


def never_measured(predictor: Any, sets: Sequence[ColocationSet]) -> list[str]:
    """Aspects of these sets that were never measured, in words, each once.

    Args:
        predictor: a predictor of any kind; one that predicts arrays only (a table, a user's own) says nothing.
        sets: the sets behind an answer.
    """
    if not sets:
        return []
    if ask := getattr(predictor, "never_measured", None):
        said = ask(sets)
    elif predict := getattr(predictor, "predict_many", None):
        said = [prediction.never_measured for prediction in predict(sets)]
    else:
        return []
    return list(dict.fromkeys(reason for reasons in said for reason in reasons))
