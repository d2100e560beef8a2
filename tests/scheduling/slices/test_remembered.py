from __future__ import annotations

import numpy as np

from profiling.workload import ColocationSet
from scheduling.slices.remembered import Remembered
from tests.scheduling.slices.rates import AmdahlPredictor

FIELDS = ("mask", "solo_step_time_s", "step_time_s", "slowdown", "memory_bytes", "utilization_ratio",
          "memory_upper_bytes", "fits")  # fmt: skip


def test_predictions_are_equal_and_made_once() -> None:
    predictor, plain = (AmdahlPredictor([0.2, 0.8, 0.5], [3, 40, 5]) for _ in range(2))
    a, b, c = predictor.jobs()
    remembered = Remembered(predictor)
    pairs = [ColocationSet("a100", pair) for pair in [(a, b), (a, c), (a, b)]]
    for sets in (
        pairs,
        pairs[::-1],
        [ColocationSet("a100:mig=3g", (c,))],
        [*pairs, ColocationSet("v100", (a,))],
    ):
        expected, got = plain.predict_arrays(sets), remembered.predict_arrays(sets)
        for name in FIELDS:
            np.testing.assert_array_equal(getattr(got, name), getattr(expected, name))
            assert getattr(got, name).dtype == getattr(expected, name).dtype
    # Two pairs and a single; sets of different sizes are passed on.
    assert predictor.asked == 2 + 1 + 4
