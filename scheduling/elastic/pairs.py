"""Two jobs on one GPU choose their frozen prefixes together: freezing lowers what each asks of the device and its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from predictor.types import Floats, SetPredictor
from profiling.errors import InputError
from profiling.workload import ColocationSet, Workload


@dataclass(frozen=True, slots=True)
class PairChoice:
    """Prefixes (indices of the candidates) for two jobs on one GPU, and what each keeps of its effective progress."""

    prefixes: tuple[int, int]
    kept: tuple[float, float]

    @property
    def gain(self) -> float:
        """Sum of R'_i / R_i: 1 is what the GPU would give to one job alone."""
        return sum(self.kept)


def choose_pair(
    workloads: tuple[Workload, Workload],
    candidates: tuple[Sequence[int], Sequence[int]],
    penalties: tuple[Floats, Floats],
    best_alone: tuple[float, float],
    predictor: SetPredictor,
    device: str,
    sharing: str = "time-slice",
    min_gain: float = 1.1,
) -> PairChoice | None:
    """The pair (k_i, k_j) that maximises R'_i / R_i + R'_j / R_j, or None where none exceeds `min_gain` and fits.

    Args:
        candidates: prefixes that the guards allow now, for each job.
        penalties: their frozen penalties, same lengths.
        best_alone: R of each job alone on the GPU with its best prefix, steps per second.
        predictor: predicts co-located step times and memory of all pairs in one call.
    """
    for prefixes, penalty in zip(candidates, penalties, strict=True):
        if not len(prefixes) or len(prefixes) != len(penalty):
            raise InputError("candidates and penalties differ", expected="as many of both", got=len(prefixes))
    pairs = [(i, j) for i in range(len(candidates[0])) for j in range(len(candidates[1]))]
    predicted = predictor.predict_arrays(
        [
            ColocationSet(
                device,
                (
                    replace(workloads[0], frozen_prefix=int(candidates[0][i])),
                    replace(workloads[1], frozen_prefix=int(candidates[1][j])),
                ),
                sharing,
            )
            for i, j in pairs
        ]
    )
    index = np.array(pairs)
    worth = np.stack([1.0 - np.asarray(penalties[side])[index[:, side]] for side in (0, 1)], axis=1)
    kept = worth / predicted.step_time_s[:, :2] / np.array(best_alone)[None, :]
    total = np.where(predicted.fits, kept.sum(axis=1), -np.inf)
    best = int(total.argmax())
    if not total[best] > min_gain:
        return None
    return PairChoice((pairs[best][0], pairs[best][1]), (float(kept[best, 0]), float(kept[best, 1])))
