"""Chooses the frozen prefixes of two jobs on one GPU jointly.

Freezing lowers each job's demand on device and memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from predictor.types import Bools, Floats, SetPredictor
from profiling.errors import InputError
from profiling.workload import Workload
from scheduling.core.set_cache import SetCache


@dataclass(frozen=True, slots=True)
class PairChoice:
    """Prefixes (candidate indices) for two jobs on one GPU, and the share of progress that each keeps."""

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
    rates: tuple[Floats, Floats],
    predictor: SetPredictor | SetCache,
    device: str,
    sharing: str = "time-slice",
    min_gain: float = 1.1,
    present: tuple[int, int] | None = None,
    min_prefix_gain: float = 0.02,
) -> PairChoice | None:
    """The pair (k_i, k_j) that maximises R'_i / R_i + R'_j / R_j.

    None if none that fits exceeds `min_gain`. R is the effective progress of a job alone on the GPU with its
    best candidate, and R' that beside the other job: the solo rate over the slowdown predicted for both
    prefixes.

    Args:
        workloads: the two jobs.
        candidates: prefixes that the guards allow now, for each job.
        penalties, rates: frozen penalties, and steps per second alone on the GPU; same lengths.
        predictor: predicts slowdowns and memory of all pairs in one call.
        device, sharing: where they run.
        min_gain: lowest gain.
        present: current indices of a pair, kept unless others gain `min_prefix_gain`.
        min_prefix_gain: relative gain required for a change.
    """
    for prefixes, penalty, rate in zip(candidates, penalties, rates, strict=True):
        if not len(prefixes) or not len(prefixes) == len(penalty) == len(rate):
            raise InputError(
                "candidates, penalties and rates differ", expected="as many of each", got=len(prefixes)
            )
    worth = [(1.0 - np.asarray(p)) * np.asarray(r) for p, r in zip(penalties, rates, strict=True)]
    if min(w.max() for w in worth) <= 0:
        return None
    pairs = [(i, j) for i in range(len(candidates[0])) for j in range(len(candidates[1]))]
    frozen = [
        [replace(w, frozen_prefix=int(k)) for k in ks] for w, ks in zip(workloads, candidates, strict=True)
    ]
    slowdown, fits = pair_slowdowns(
        predictor, device, sharing, [(frozen[0][i], frozen[1][j]) for i, j in pairs]
    )
    index = np.array(pairs)
    share = np.stack([worth[side][index[:, side]] / worth[side].max() for side in (0, 1)], axis=1)
    kept = share / slowdown
    total = np.where(fits, kept.sum(axis=1), -np.inf)
    best = int(total.argmax())
    if present is not None:
        now = pairs.index(present)
        best = now if total[now] * (1.0 + min_prefix_gain) >= total[best] else best
    if not total[best] > min_gain:
        return None
    return PairChoice((pairs[best][0], pairs[best][1]), (float(kept[best, 0]), float(kept[best, 1])))


def pair_slowdowns(
    predictor: SetPredictor | SetCache, device: str, sharing: str, pairs: Sequence[tuple[Workload, Workload]]
) -> tuple[Floats, Bools]:
    """[P, 2] slowdown of each job beside the other, and [P] whether both fit; each pair is queried once."""
    cache = SetCache.of(predictor)
    members = np.array([[cache.workload_id(w) for w in pair] for pair in pairs])
    rows, columns = cache.pairs(cache.device_id(device, sharing), members)
    return np.take_along_axis(cache.slowdown[rows], columns, axis=1), cache.fits[rows]
