"""Ranges of GPUs for jobs of a trace that names none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from profiling.errors import InputError
from scheduling.core.job import TraceJob


def with_ranges(jobs: Sequence[TraceJob], share: float, most: int, seed: int = 0) -> list[TraceJob]:
    """The same jobs, each elastic with probability `share`: from 1 GPU to 2 or 4 times those it asks for.

    The draws are ours. Jobs that have a range keep it, and nobody gets more than `most` GPUs, those of the largest type.

    Raises:
        InputError: `share` is not from 0 to 1.
    """
    if not 0 <= share <= 1:
        raise InputError("elastic share is out of range", expected="0 to 1", got=share)
    rng = np.random.default_rng((seed, 7))
    chosen = rng.random(len(jobs)) < share
    factor = rng.choice([2, 4], len(jobs))
    return [
        replace(job, min_gpus=1, max_gpus=max(min(job.gpus * int(times), most), job.gpus))
        if elastic and job.min_gpus is None and job.max_gpus is None
        else job
        for job, elastic, times in zip(jobs, chosen, factor, strict=True)
    ]
