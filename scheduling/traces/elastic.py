"""Ranges of GPUs and of batch sizes for jobs of a trace that states none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from profiling.errors import InputError
from profiling.workload import Workload
from scheduling.core.batches import BatchRange
from scheduling.core.job import TraceJob

# Relative to a job's own total batch. In Sia's measured applications it rises during a run from one batch to
# some hundreds.
_NOISE_SCALES = (1.0, 64.0)
_LARGEST_BATCHES = (4, 8, 16, 32)


def with_ranges(jobs: Sequence[TraceJob], share: float, most: int, seed: int = 0) -> list[TraceJob]:
    """The same jobs, each elastic with probability `share`: from 1 GPU to 2 or 4 times the requested number.

    The draws are ours. Jobs that already have a range keep it, and none gets more than `most` GPUs, the
    number of GPUs of the largest type.

    Raises:
        InputError: `share` is not from 0 to 1.
    """
    rng, chosen = _drawn(len(jobs), share, (seed, 7))
    factor = rng.choice([2, 4], len(jobs))
    return [
        replace(job, min_gpus=1, max_gpus=max(min(job.gpus * int(times), most), job.gpus))
        if elastic and job.min_gpus is None and job.max_gpus is None
        else job
        for job, elastic, times in zip(jobs, chosen, factor, strict=True)
    ]


def with_batches(
    jobs: Sequence[TraceJob], share: float, sizes: Callable[[Workload, int], Sequence[int]], seed: int = 0
) -> list[TraceJob]:
    """The same jobs, each with a tunable batch with probability `share`.

    The batch may grow to 4, 8, 16 or 32 times the job's own total, with a gradient noise scale of 1 to 64
    times that (log-uniform); the draws are ours. Jobs that already have a range keep it; jobs without a batch
    of their own, or with no other to choose, get none.

    Args:
        jobs: the jobs.
        share: probability.
        sizes: batch sizes per GPU that a workload can run with, up to a number of samples.
        seed: seed of the draws.

    Raises:
        InputError: `share` is not from 0 to 1.
    """
    rng, chosen = _drawn(len(jobs), share, (seed, 11))
    times = rng.choice(_LARGEST_BATCHES, len(jobs))
    low, high = np.log(_NOISE_SCALES).tolist()
    noise = np.exp(rng.uniform(low, high, len(jobs)))
    return [
        with_batch_range(job, float(most), float(scale), sizes) if tunable and job.batches is None else job
        for job, tunable, most, scale in zip(jobs, chosen, times, noise, strict=True)
    ]


def with_batch_range(
    job: TraceJob, largest_ratio: float, noise_ratio: float, sizes: Callable[[Workload, int], Sequence[int]]
) -> TraceJob:
    """`job` with batches of up to `largest_ratio` times its own total.

    Its noise scale is `noise_ratio` times that total.
    """
    own = job.workload.batch_size
    if own is None:
        return job
    total = own * job.gpus
    largest = int(total * largest_ratio)
    choices = sorted({own, *sizes(job.workload, largest)})
    return (
        replace(job, batches=BatchRange(tuple(choices), largest, total * noise_ratio))
        if len(choices) > 1
        else job
    )


def _drawn(count: int, share: float, seed: tuple[int, int]) -> tuple[np.random.Generator, NDArray[np.bool_]]:
    """A generator for further draws, and [count] jobs chosen with probability `share`."""
    if not 0 <= share <= 1:
        raise InputError("share of the jobs is out of range", expected="0 to 1", got=share)
    rng = np.random.default_rng(seed)
    return rng, rng.random(count) < share
