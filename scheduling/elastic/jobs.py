"""`ElasticJob`: the allocator's view of a job. Arrays over sizes (S) and candidate frozen prefixes (K)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from predictor.types import Floats
from profiling.checked_fields import check_range
from profiling.errors import InputError
from scheduling.core.job import TraceJob
from scheduling.elastic.penalty import FreezingGuards, allowed_changes, frozen_penalty

SIZES = (1, 2, 3, 4, 8, 12, 16)


def sizes_of(job: TraceJob) -> tuple[int, ...]:
    """[S] the numbers of GPUs by which a job's rates are listed, smallest first.

    A job that can run on none of `SIZES` has the number that it requests among them, in place of the next larger.
    """
    least, most = job.gpu_range
    if any(least <= size <= most for size in SIZES):
        return SIZES
    place = min(bisect_left(SIZES, job.gpus), len(SIZES) - 1)
    return (*SIZES[:place], job.gpus, *SIZES[place + 1 :])


@dataclass(frozen=True, slots=True)
class IceFrogConfig:
    """Configuration of the allocator.

    Attributes:
        guards: when and how far a prefix may be frozen; `max_norm_share=0` never freezes (the k = 0 control).
        round_s: seconds between decisions.
        min_size_gain, min_prefix_gain: relative gain in effective progress below which size or prefix stay. A job
            also keeps its GPUs from one that is shorter, or would gain more from them, by less than the first.
        resize_s: cost of a change of size, which is skipped if the job would not recoup it.
        starvation_s: a job that has waited this long in all is served before shorter ones, for as long.
        shortness: 0 weighs all jobs alike; 1 weighs each by the inverse of its remaining time, which favours
            the mean completion time over fairness [ours].
        share_gpus: jobs without a GPU may run beside a single-GPU job, with both prefixes chosen together.
        min_pair_gain: R'_i / R_i + R'_j / R_j from which two jobs share a GPU; they part below 1.
        pairs_per_round: jobs that look for a partner in one round, shortest first (which bounds decision
            time).
    """

    guards: FreezingGuards = field(default_factory=FreezingGuards)
    round_s: float = 60.0
    min_size_gain: float = 0.10
    min_prefix_gain: float = 0.02
    resize_s: float = 30.0
    starvation_s: float = 4 * 3600.0
    shortness: float = 0.0
    share_gpus: bool = False
    min_pair_gain: float = 1.1
    pairs_per_round: int = 8

    def __post_init__(self) -> None:
        gains_and_times = ("min_size_gain", "min_prefix_gain", "resize_s", "starvation_s")
        check_range(self, lambda value: value >= 0, "from 0", *gains_and_times)
        check_range(self, lambda value: value > 0, "seconds above 0", "round_s")
        if not self.min_pair_gain >= 1 or self.pairs_per_round < 1:
            raise InputError(
                "sharing is out of range",
                expected="a gain and a number of pairs from 1",
                got=(self.min_pair_gain, self.pairs_per_round),
            )
        if not 0 <= self.shortness <= 1:
            raise InputError("shortness is out of range", expected="0 to 1", got=self.shortness)


@dataclass(frozen=True, eq=False, slots=True)
class ElasticJob:
    """One job in one round.

    Attributes:
        number: unique; smaller was submitted earlier.
        left: unfrozen iterations left.
        rate: [S, K] iterations per second with each size of `sizes` and candidate prefix, statistical
            efficiency included; 0 if it does not fit or may not grow that far.
        norm_share: [K] S_k of the candidates; the first freezes nothing.
        progress, debt: effective progress from 0 to 1, and the penalty integrated over it.
        size, prefix: indices held now; size -1 while it waits.
        goes_first: whether it is served before shorter ones.
        sizes: [S] numbers of GPUs.
    """

    number: int
    left: float
    rate: Floats
    norm_share: Floats
    progress: float = 0.0
    debt: float = 0.0
    size: int = -1
    prefix: int = 0
    goes_first: bool = False
    sizes: tuple[int, ...] = SIZES

    def __post_init__(self) -> None:
        if self.rate.shape != (len(SIZES), len(self.norm_share)) or not self.left >= 0:
            raise InputError(
                f"elastic job {self.number} is invalid",
                expected=f"rates of shape ({len(SIZES)}, {len(self.norm_share)}) and work from 0",
                got=f"{self.rate.shape}, {self.left}",
            )


@dataclass(frozen=True, slots=True)
class Grant:
    """A job's grant: an index into its sizes (-1: it waits), one into its candidate prefixes, and how many GPUs."""

    size: int
    prefix: int
    gpus: int


def best_by_size(jobs: Sequence[ElasticJob], config: IceFrogConfig) -> tuple[Floats, NDArray[np.int64]]:
    """R* [J, S] over prefixes, and the prefixes [J, S] that reach it.

    The current prefix stays if another gains less than the required minimum.
    """
    count, width = len(jobs), max(len(job.norm_share) for job in jobs)
    share = np.full((count, width), np.inf)
    rate = np.zeros((count, len(SIZES), width))
    for i, job in enumerate(jobs):
        share[i, : len(job.norm_share)] = job.norm_share
        rate[i, :, : len(job.norm_share)] = job.rate
    progress = np.array([[job.progress] for job in jobs])
    debt = np.array([[job.debt] for job in jobs])
    is_current = np.arange(width)[None, :] == np.array([[job.prefix] for job in jobs])
    allowed = allowed_changes(share, progress, debt, config.guards, is_current)
    rates = rate * np.where(allowed, 1.0 - frozen_penalty(share, config.guards.kappa), 0.0)[:, None, :]
    best = rates.argmax(axis=2)
    now = np.array([job.prefix for job in jobs])[:, None, None]
    present = np.take_along_axis(rates, np.broadcast_to(now, (count, len(SIZES), 1)), axis=2)[:, :, 0]
    stays = (present > 0) & (present * (1.0 + config.min_prefix_gain) >= rates.max(axis=2))
    chosen = np.where(stays, now[:, :, 0], best)
    return np.take_along_axis(rates, chosen[:, :, None], axis=2)[:, :, 0], chosen
