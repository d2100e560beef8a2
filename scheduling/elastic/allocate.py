"""IceFrog's round: GPUs and frozen prefixes for all jobs, by marginal effective progress.

Without co-location, the prefix decouples: R*(g) = max_k R(g, k). What remains is elastic allocation on R*:
one GPU each, shortest remaining effective work first; then each further GPU to the job for which it lowers
the sum of R*(fair) / R*(g) most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from predictor.types import Floats
from scheduling.elastic.jobs import SIZES, ElasticJob, Grant, IceFrogConfig, best_by_size

_GPUS = np.array(SIZES, dtype=np.float64)


def allocate(
    jobs: Sequence[ElasticJob],
    gpus: int,
    config: IceFrogConfig = IceFrogConfig(),
    *,
    admit_by: Literal["remaining", "submission"] = "remaining",
    weigh_by: Literal["fair", "remaining"] = "fair",
) -> list[Grant]:
    """Grants for every job, in the given order, with at most `gpus` GPUs in total.

    Args:
        admit_by: which jobs get the first GPUs if there are more jobs than GPUs, after those that go first.
        weigh_by: minimise the sum of R*(fair) / R*(g), or (as Optimus does) of remaining times left / R*(g).
    """
    if not jobs:
        return []
    rates, prefixes = best_by_size(jobs, config)
    size = _sizes(jobs, rates, gpus, config, admit_by == "remaining", weigh_by == "remaining")
    _keep_sizes(jobs, rates, size, gpus, config)
    return [
        Grant(int(s), int(prefix[s]), job.sizes[s]) if s >= 0 else Grant(-1, job.prefix, 0)
        for job, s, prefix in zip(jobs, size, prefixes, strict=True)
    ]


def weights(
    jobs: Sequence[ElasticJob], rates: Floats, gpus: int, config: IceFrogConfig
) -> tuple[Floats, Floats]:
    """([J] weight, [J] R*(fair)) of the objective sum_j weight_j R*_j(fair) / R*_j(g).

    A job that needs more than its fair share is compared with its smallest size.
    """
    fair = float(np.clip(gpus / len(jobs), 1.0, SIZES[-1]))
    low = min(int(np.searchsorted(_GPUS, fair, side="right")) - 1, len(SIZES) - 2)
    part = (fair - _GPUS[low]) / (_GPUS[low + 1] - _GPUS[low])
    runs = rates > 0
    smallest = np.take_along_axis(rates, runs.argmax(axis=1)[:, None], axis=1)
    grown = np.maximum.accumulate(np.where(runs, rates, smallest), axis=1)
    at_fair = (1.0 - part) * grown[:, low] + part * grown[:, low + 1]
    alone = np.maximum(at_fair, 1e-300)
    remaining = np.maximum(np.array([job.left for job in jobs]) / alone, 1.0)
    weight = (remaining.min() / remaining) ** config.shortness
    return weight, at_fair


def _sizes(
    jobs: Sequence[ElasticJob],
    rates: Floats,
    gpus: int,
    config: IceFrogConfig,
    shortest_first: bool,
    weigh_remaining: bool,
) -> NDArray[np.int64]:
    """[J] indices into the jobs' sizes, -1 for jobs that get nothing."""
    size = np.full(len(jobs), -1)
    runs = rates > 0
    smallest = np.where(runs.any(axis=1), runs.argmax(axis=1), -1)
    first = np.take_along_axis(rates, np.maximum(smallest, 0)[:, None], axis=1)[:, 0]
    remaining = np.array([job.left for job in jobs]) / np.maximum(first, 1e-300)
    held = np.array([job.size for job in jobs])
    # Whoever loses GPUs must lose little too, or two nearly equal jobs would take them from each other in turn.
    remaining[held >= 0] /= 1.0 + config.min_size_gain
    left = gpus

    def turn(i: int) -> tuple[bool, bool, float, int]:
        # Of those that go first, the ones that run stay; then comes the earliest, so that none starves behind others.
        first = jobs[i].goes_first
        by_length = shortest_first and not first
        return not first, first and jobs[i].size < 0, remaining[i] if by_length else 0.0, jobs[i].number

    for i in sorted(range(len(jobs)), key=turn):
        need = jobs[i].sizes[smallest[i]] if smallest[i] >= 0 else gpus + 1
        if need <= left:
            size[i] = smallest[i]
            left -= need
    weight, at_fair = weights(jobs, rates, gpus, config)
    worth = np.array([job.left for job in jobs]) if weigh_remaining else weight * at_fair
    cost = np.where(rates > 0, worth[:, None] / np.maximum(rates, 1e-300), np.inf)
    changes = (held[:, None] >= 0) & (np.arange(len(SIZES)) != held[:, None])
    cost[changes] *= 1.0 + config.min_size_gain
    gain = np.array([_gains(cost[i], size[i]) for i in range(len(jobs))])  # [J, S]
    sizes = np.array([job.sizes for job in jobs], dtype=np.float64)
    step = np.array([own - (own[s] if s >= 0 else 0.0) for own, s in zip(sizes, size, strict=True)])
    while left > 0:
        per_gpu = np.where((step <= left) & (step > 0), gain / np.maximum(step, 1e-9), 0.0)
        i, s = divmod(int(per_gpu.argmax()), len(SIZES))
        if per_gpu[i, s] <= 0:
            break
        left -= int(step[i, s])
        size[i] = s
        gain[i] = _gains(cost[i], int(s))
        step[i] = sizes[i] - sizes[i, s]
    return size


def _gains(cost: Floats, size: int) -> Floats:
    """[S] what each larger size saves; nothing for a job that was not admitted."""
    if size < 0:
        return np.zeros(len(SIZES))
    saved = cost[size] - cost
    saved[: size + 1] = 0.0
    return np.where(np.isfinite(saved), saved, 0.0)


def _keep_sizes(
    jobs: Sequence[ElasticJob], rates: Floats, size: NDArray[np.int64], gpus: int, config: IceFrogConfig
) -> None:
    """Hysteresis, in place: a size changes only for a sufficient gain, and a shrunk job gets back leftover
    GPUs."""
    for i, job in enumerate(jobs):
        if 0 <= job.size < size[i] and not _pays(job, rates[i, job.size], rates[i, size[i]], config):
            size[i] = job.size
    left = gpus - sum(job.sizes[s] for job, s in zip(jobs, size, strict=True) if s >= 0)
    for i in sorted(range(len(jobs)), key=lambda i: jobs[i].left):
        job = jobs[i]
        if 0 <= size[i] < job.size and rates[i, job.size] > 0:
            back = job.sizes[job.size] - job.sizes[size[i]]
            if back <= left:
                size[i] = job.size
                left -= back


def _pays(job: ElasticJob, now: float, then: float, config: IceFrogConfig) -> bool:
    if now <= 0:
        return True
    if then < now * (1.0 + config.min_size_gain):
        return False
    return config.resize_s + job.left / then < job.left / now
