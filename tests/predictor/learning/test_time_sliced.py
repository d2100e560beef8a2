from __future__ import annotations

import pytest

from predictor.examples.observations import Observation
from predictor.learning.posterior import Posterior
from predictor.predictor import Predictor
from profiling.workload import ColocationSet, Workload

JOBS = [Workload.parse(f"{name}:batch_size=32") for name in ("alpha", "beta", "gamma")]


def observed(predictor: Predictor, sharing: str, factor: float, *jobs: Workload) -> Observation:
    asked = ColocationSet("v100", jobs, sharing)
    return Observation(asked, 0, float(predictor.predict_arrays([asked]).step_time_s[0, 0]) * factor)


def test_a_job_alone_runs_alike_in_every_sharing_mode_after_observations(predictor: Predictor) -> None:
    posterior = Posterior(predictor)
    posterior.observe([observed(predictor, "time-slice", 1.6, JOBS[0])])
    steps = [
        posterior.predict(ColocationSet("v100", (JOBS[0],), sharing)).members[0].step_time_s.value
        for sharing in ("time-slice", "mps")
    ]
    assert steps[0] == pytest.approx(steps[1])
