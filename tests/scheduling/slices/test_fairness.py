"""Fairness: of the plans with the same least speed, the one with the greatest throughput."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest

from predictor.types import PredictionArrays
from profiling.workload import ColocationSet
from scheduling.slices.options import SliceConfig, SliceJob
from scheduling.slices.plan import plan_slices
from tests.scheduling.slices.rates import AmdahlPredictor

MODES = ("time-slice", "mps")
PAIRS = list(combinations(range(4), 2))


class UnevenPredictor(AmdahlPredictor):
    """Pairs of which no slice but the halves of an A30 holds one, with slowdowns that differ by sharing mode: one may be
    fairer, the other faster. Larger sets are slow."""

    def __init__(self, seed: int) -> None:
        super().__init__([0.9] * 4, [5.83] * 4)
        rng = np.random.default_rng(seed)
        self.slowdown = {(pair, mode): rng.uniform(1, 3, 2) for pair in PAIRS for mode in MODES}

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        arrays = super().predict_arrays(sets)
        step_time_s = arrays.solo_step_time_s.copy()
        for row, asked in enumerate(sets):
            numbers = tuple(int(w.model.split("-")[1]) for w in asked.workloads)
            if len(numbers) == 2:
                step_time_s[row, :2] *= self.slowdown[numbers, asked.sharing]
            elif len(numbers) > 2:
                step_time_s[row] *= 20
        return replace(arrays, step_time_s=step_time_s)

    def best(self) -> tuple[float, float]:
        """The greatest (least speed, throughput) of two pairs on the halves, each with either sharing mode."""
        solo = [0.1 * (1 + k) for k in range(4)]
        half = [0.1 * (1 + k) * (0.9 + 0.1 * 2) for k in range(4)]
        found = []
        for pair, *modes in product(PAIRS[:3], MODES, MODES):
            other = tuple(sorted(set(range(4)) - set(pair)))
            speeds = [
                solo[k] / (half[k] * slowdown)
                for members, mode in zip((pair, other), modes, strict=True)
                for k, slowdown in zip(members, self.slowdown[members, mode], strict=True)
            ]
            found.append((round(min(speeds), 9), sum(speeds)))
        return max(found)


@pytest.mark.parametrize("seed", range(30, 70))
def test_throughput_decides_among_equally_fair_plans(seed: int) -> None:
    predictor = UnevenPredictor(seed)
    jobs = [SliceJob(w) for w in predictor.jobs()]
    plan = plan_slices(jobs, "a30", predictor, SliceConfig(objective="fairness", shares=(1.0,)))
    speeds = [plan.speed(plan.chosen, k) for k in range(4)]
    assert (min(speeds), sum(speeds)) == pytest.approx(predictor.best())


def test_rounding_decides_nothing() -> None:
    """Unmeasured MPS is bounded by time slicing, so a job may be equally slow under both, but for rounding."""
    predictor = UnevenPredictor(0)
    for longer in (1 - 1e-7, 1 + 1e-7):
        predictor.slowdown[(0, 1), "mps"] = np.array([2.0 * longer, 1.5])
        predictor.slowdown[(0, 1), "time-slice"] = np.array([2.0, 1.8])
        jobs = [SliceJob(w) for w in predictor.jobs()[:2]]
        plan = plan_slices(jobs, "v100", predictor, SliceConfig(objective="fairness", shares=(1.0,)))
        assert plan.chosen.kind == "mps"
