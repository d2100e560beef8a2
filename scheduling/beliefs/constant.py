"""A belief without an interference model: every co-located job keeps the same share of its speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from predictor.types import PredictionArrays, SetPredictor
from profiling.errors import InputError
from profiling.workload import ColocationSet


class ConstantPredictor:
    """Solo times and memory of another predictor, and one throughput ratio for every co-located job.

    It is the control for measuring the value of interference predictions.
    """

    def __init__(self, base: SetPredictor, ratio: float = 0.65) -> None:
        if not 0 < ratio <= 1:
            raise InputError("ratio is out of range", expected="a number above 0, at most 1", got=ratio)
        self.base, self.ratio = base, ratio

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        """See `SetPredictor`."""
        answer = self.base.predict_arrays(sets)
        shared = answer.mask.sum(axis=1, keepdims=True) > 1
        slowdown = np.where(shared, 1.0 / self.ratio, answer.slowdown) * np.ones(answer.mask.shape)
        busy = answer.utilization_ratio * answer.slowdown / slowdown
        return replace(
            answer,
            slowdown=slowdown,
            step_time_s=answer.solo_step_time_s * slowdown,
            utilization_ratio=busy,
        )
