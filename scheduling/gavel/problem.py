"""Input of an allocation: rows of one or two jobs, GPU types, and the speed of each member of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from predictor.types import Floats
from profiling.errors import InputError
from scheduling.core.set_cache import Ints

Row = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AllocationProblem:
    """R rows over J jobs on W GPU types.

    Attributes:
        rows: job indices of each row: every job alone, and pairs that may share GPUs.
        speed: [R, W, 2] steps per second of the row's members (the second is 0 for a job alone).
        gpus: [J] GPUs that a job takes, s_i.
        counts: [W] GPUs of each type.
    """

    rows: tuple[Row, ...]
    speed: Floats
    gpus: Ints
    counts: Floats

    def __post_init__(self) -> None:
        if self.speed.shape != (len(self.rows), len(self.counts), 2):
            raise InputError(
                "speeds do not fit the rows",
                expected=f"shape ({len(self.rows)}, {len(self.counts)}, 2)",
                got=self.speed.shape,
            )

    @classmethod
    def of(
        cls,
        alone: Floats,
        gpus: Sequence[int],
        counts: Sequence[float],
        pairs: Mapping[tuple[int, int], Floats] | None = None,
    ) -> AllocationProblem:
        """From solo speeds [J, W] and, per pair of jobs, joint speeds [W, 2]."""
        pairs = pairs or {}
        singles = np.stack([np.asarray(alone, float), np.zeros_like(alone, dtype=float)], axis=2)
        together = [np.asarray(speed, float)[None] for speed in pairs.values()]
        rows = (*((j,) for j in range(len(alone))), *pairs)
        speed = np.concatenate([singles, *together])
        return cls(rows, speed, np.asarray(gpus, np.int64), np.asarray(counts, float))

    @property
    def jobs(self) -> int:
        return len(self.gpus)

    @property
    def alone(self) -> Floats:
        """[J, W] steps per second of each job alone."""
        return self.speed[: self.jobs, :, 0]

    def equal_share(self) -> Floats:
        """[J] steps per second on the average GPU: the count-weighted mean over types."""
        return np.asarray(self.alone @ self.counts / self.counts.sum(), float)

    def allowed(self) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """[R, W] whether a row may run: not pairs of unequal sizes."""
        equal = [len({int(self.gpus[j]) for j in row}) == 1 for row in self.rows]
        return np.repeat(np.array(equal, bool)[:, None], len(self.counts), axis=1)

    def even(self, shares: Floats) -> Floats:
        """[R, W] `shares`, averaged over jobs of equal speeds and GPUs; single rows only."""
        alike, member = np.unique(np.column_stack([self.alone, self.gpus]), axis=0, return_inverse=True)
        member = member.reshape(-1)
        total = np.zeros((len(alike), shares.shape[1]))
        np.add.at(total, member, shares[: self.jobs])
        mean = (total / np.bincount(member)[:, None])[member]
        return np.concatenate([mean, shares[self.jobs :]])

    def progress(self) -> csr_array:
        """[J, R * W] steps per second of each job per unit of each cell's time."""
        data: list[float] = []
        at: list[int] = []
        cells: list[int] = []
        width = len(self.counts)
        for r, row in enumerate(self.rows):
            for member, job in enumerate(row):
                data.extend(self.speed[r, :, member].tolist())
                at.extend([job] * width)
                cells.extend(range(r * width, (r + 1) * width))
        return csr_array((data, (at, cells)), shape=(self.jobs, len(self.rows) * width))

    def limits(self) -> tuple[csr_array, Floats]:
        """(A, b) of A x <= b: a job's time sums to at most 1, GPUs of each type to at most their number."""
        width, total = len(self.counts), len(self.rows) * len(self.counts)
        held: list[int] = []
        at: list[int] = []
        for r, row in enumerate(self.rows):
            for job in row:
                held.extend([job] * width)
                at.extend(range(r * width, (r + 1) * width))
        size = np.array([self.gpus[row[0]] for row in self.rows], float)
        use = np.tile(np.arange(width), len(self.rows)) + self.jobs
        data = np.concatenate([np.ones(len(held)), np.repeat(size, width)])
        index = (np.concatenate([held, use]), np.concatenate([at, np.arange(total)]))
        matrix = csr_array((data, index), shape=(self.jobs + width, total))
        return matrix, np.concatenate([np.ones(self.jobs), self.counts])
