"""Asks a posterior in all ways."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictor.learning.posterior import Posterior
from predictor.types import PredictionArrays
from profiling.workload import ColocationSet


def arrays_that_agree(posterior: Posterior, sets: Sequence[ColocationSet]) -> PredictionArrays:
    """Answers about time-sliced sets, which are the same by row and, up to rounding, one by one."""
    arrays = posterior.predict_arrays(sets)
    rows = posterior.predict_rows(posterior.rows(sets), "time-slice")
    np.testing.assert_allclose(rows.step_time_s, arrays.step_time_s, rtol=1e-6)
    for k, one in enumerate(sets):
        values = [member.step_time_s.value for member in posterior.predict(one).members]
        np.testing.assert_allclose(values, arrays.step_time_s[k, : len(values)], rtol=1e-4)
        alone = posterior.predict_arrays([one]).step_time_s[0]
        np.testing.assert_allclose(alone, arrays.step_time_s[k, : len(alone)], rtol=1e-6)
    return arrays
