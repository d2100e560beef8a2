from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.examples.observations import Observation
from predictor.learning.posterior import Posterior
from predictor.predictor import Predictor
from profiling.workload import ColocationSet, SoloProfile, Workload

JOBS = [Workload.parse(f"{name}:batch_size=32") for name in ("alpha", "beta", "gamma")]
SETS = [tuple(JOBS[:2]), tuple(JOBS), (JOBS[1], JOBS[1])]


def observed(predictor: Predictor, sharing: str, factor: float, *jobs: Workload) -> Observation:
    asked = ColocationSet("v100", jobs, sharing)
    return Observation(asked, 0, float(predictor.predict_arrays([asked]).step_time_s[0, 0]) * factor)


def test_after_observations_a_lone_job_runs_alike_in_every_sharing_mode(predictor: Predictor) -> None:
    posterior = Posterior(predictor)
    posterior.observe([observed(predictor, "time-slice", 1.6, JOBS[0])])
    steps = [
        posterior.predict(ColocationSet("v100", (JOBS[0],), sharing)).members[0].step_time_s.value
        for sharing in ("time-slice", "mps")
    ]
    assert steps[0] == pytest.approx(steps[1])


def test_mps_is_no_slower_than_time_slicing_until_it_is_observed(predictor: Predictor) -> None:
    """The synthetic measurements are time-sliced."""
    posterior = Posterior(predictor)
    posterior.observe([observed(predictor, "time-slice", 0.6, *jobs) for jobs in SETS])
    sliced, mps = (
        [ColocationSet("v100", jobs, sharing) for jobs in SETS] for sharing in ("time-slice", "mps")
    )
    most, arrays = posterior.predict_arrays(sliced), posterior.predict_arrays(mps)
    rows = posterior.predict_rows(posterior.rows(mps), "mps")
    assert (arrays.slowdown <= most.slowdown * (1 + 1e-9)).all()
    assert (arrays.step_time_s <= most.step_time_s * (1 + 1e-9)).all()
    np.testing.assert_allclose(rows.slowdown, arrays.slowdown, rtol=1e-5)
    for k, prediction in enumerate(posterior.predict_many(mps)):
        for m, member in enumerate(prediction.members):
            for name in ("slowdown", "step_time_s", "utilization_ratio"):
                quantity = getattr(member, name)
                assert quantity.value == pytest.approx(getattr(arrays, name)[k, m], rel=1e-4)
                assert quantity.lower <= quantity.value <= quantity.upper
    posterior.observe([observed(predictor, "mps", 3.0, *SETS[0])] * 4)
    assert posterior.predict_arrays(mps).slowdown[0, 0] > posterior.predict_arrays(sliced).slowdown[0, 0]


def test_after_observations_time_sliced_jobs_use_at_most_all_of_the_time(
    predictor: Predictor,
) -> None:
    busy = [replace(job, solo=SoloProfile(utilization_ratio=0.95)) for job in JOBS]
    sets = [ColocationSet("v100", tuple(busy[:size])) for size in (2, 3)]
    assert predictor.predict_arrays(sets).utilization_ratio.sum(1) == pytest.approx([1.0, 1.0])
    posterior = Posterior(predictor)
    posterior.observe([observed(predictor, "time-slice", 0.7, *each.workloads) for each in sets])
    arrays = posterior.predict_arrays(sets)
    assert (arrays.utilization_ratio.sum(1) <= 1 + 1e-9).all()
    for k, prediction in enumerate(posterior.predict_many(sets)):
        for m, member in enumerate(prediction.members):
            assert member.utilization_ratio.value == pytest.approx(arrays.utilization_ratio[k, m], rel=1e-4)
