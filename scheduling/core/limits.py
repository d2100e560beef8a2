"""Valid ranges of numbers in scheduling, which keep the arithmetic meaningful."""

from __future__ import annotations

from typing import Any

import numpy as np

from predictor.types import PredictionArrays
from profiling.errors import InputError
from profiling.workload import ColocationSet

STEP_TIME_S = (1e-9, 1e9)
ITERATIONS = (1e-9, 1e15)
# Beyond it, a clock that counts seconds in double precision loses the milliseconds of a run.
LATEST_S = 1e13
# Longest duration of a job in a log, ten years; a policy that decides every minute takes hours for centuries.
LONGEST_S = 3.2e8
# Most GPUs in a cluster; `count`s are summed before they are expanded.
CLUSTER_GPUS = 100_000
# Assumed solo duration of a job of unknown length.
UNKNOWN_LENGTH_S = 3600.0


def unknown_steps(step_time_s: float, length_s: float = UNKNOWN_LENGTH_S) -> float:
    """Assumed number of steps of a job of unknown length: as many as fit in `length_s`, at least one.

    Args:
        step_time_s: predicted seconds per step alone.
    """
    return max(1.0, float(round(length_s / step_time_s)))


def check_iterations(name: str, value: Any) -> None:
    """Raise `InputError` unless `value` is a valid number of training steps."""
    low, high = ITERATIONS
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise InputError(f"{name} is out of range", expected=f"a number from {low:g} to {high:g}", got=value)


def check_predictions(sets: list[ColocationSet], answer: PredictionArrays) -> None:
    """Raise `InputError` naming the first job whose predicted step time is out of range."""
    low, high = STEP_TIME_S
    step = answer.step_time_s
    wrong = answer.mask & ~((step >= low) & (step <= high))  # NaN fails both comparisons
    if wrong.any():
        row, column = (int(k) for k in np.argwhere(wrong)[0])
        raise InputError(
            f"step time of {sets[row].workloads[column]} on {sets[row].device} is out of range",
            expected=f"seconds from {low:g} to {high:g}",
            got=f"{step[row, column]:g}",
            hint="check the job's step_time_s",
        )
