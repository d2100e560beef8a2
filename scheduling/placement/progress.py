"""Predicted progress of a job alone on GPUs of one type, by their number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictor.types import Floats
from profiling.workload import Workload
from scheduling.core.job import JobState
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import SCALING
from scheduling.placement.gangs import solo_step_s


def progress_per_s(
    snapshot: SchedulingSnapshot, belief: SetCache, job: JobState, kind: int, gpus: Sequence[int]
) -> Floats:
    """[K] steps of its own batch per second on each number of GPUs of type number `kind`.

    0 if it does not fit.

    A job that chooses its batch is assumed to choose the best one.
    """
    asked, workload, batches = job.job.gpus, job.job.workload, job.job.batches
    step_s = solo_step_s(snapshot, belief, workload)[kind]
    if batches is None or not np.isfinite(step_s):
        return (np.asarray(gpus, float) / asked) ** SCALING / step_s
    memo: dict[tuple[Workload, tuple[int, ...], int], list[float]]
    memo = snapshot.derived(("batches", belief), dict, belief.revision)
    key = workload, batches.sizes, kind
    if key not in memo:
        device = belief.device_id(snapshot.types[kind], snapshot.type_sharing[kind])
        memo[key] = belief.steps_by_batch_s(device, workload, batches.sizes)
    return batches.progress(workload, asked, gpus, memo[key], SCALING)
