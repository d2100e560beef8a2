"""Batch sizes that a job may choose from during training, and the value of larger batches.

McCandlish et al., "An Empirical Model of Large-Batch Training", 2018; Qiao et al., "Pollux", OSDI 2021,
section 3: with a gradient noise scale phi, a sample in a batch of M makes (phi + M0) / (phi + M) of the
progress that it makes in the job's own batch of M0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from predictor.types import Floats
from profiling.errors import InputError
from profiling.workload import Workload


@dataclass(frozen=True, slots=True)
class BatchRange:
    """The batch sizes available to a job.

    Attributes:
        sizes: samples per GPU and step, ascending.
        largest: most samples per step over all its GPUs.
        noise_scale: gradient noise scale, in samples.
    """

    sizes: tuple[int, ...]
    largest: int
    noise_scale: float

    def __post_init__(self) -> None:
        if not self.sizes or self.sizes[0] < 1 or list(self.sizes) != sorted(set(self.sizes)):
            raise InputError("batch sizes", expected="integers from 1, ascending", got=str(self.sizes))
        if not 0 < self.noise_scale < float("inf"):
            raise InputError("noise scale", expected="samples above 0", got=self.noise_scale)

    def progress(
        self,
        workload: Workload,
        asked: int,
        gpus: Sequence[int],
        step_time_s: Sequence[float],
        scaling: float,
    ) -> Floats:
        """[K] progress per second on each number of GPUs with the best batch size, in steps of the job's own
        batch.

        The total batch is never smaller than the job's own if enough samples fit on its GPUs; samples in a
        smaller batch are worth no more. 0 if even the smallest size on that many GPUs exceeds `largest`.

        Args:
            workload: of the job as submitted, on `asked` GPUs; it states its batch size.
            asked: number of GPUs requested.
            gpus: [K].
            step_time_s: [B] of each of `sizes` on one GPU; infinite if it does not fit.
            scaling: k times the GPUs do k ** scaling times the work in the same time.
        """
        own = workload.batch_size or self.sizes[0]
        count, size = np.asarray(gpus, float)[:, None], np.asarray(self.sizes, float)[None, :]
        submitted, total = float(own * asked), count * size
        steps = np.asarray(step_time_s, float)[None, :]
        gain = np.minimum((self.noise_scale + submitted) / (self.noise_scale + total), 1.0)
        value = (count / asked) ** scaling * (size / own) * gain / steps
        value = np.where(total <= max(self.largest, submitted), value, 0.0)
        enough = total >= submitted
        possible = (enough & (value > 0)).any(1, keepdims=True)
        best: Floats = np.where(enough | ~possible, value, 0.0).max(1)
        return best
