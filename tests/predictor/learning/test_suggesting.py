"""The error that a probe is expected to leave is about the one that is left once it was observed as predicted."""

from __future__ import annotations

import pytest

from predictor.examples.observations import Observation
from predictor.learning.posterior import Posterior
from predictor.learning.suggesting import suggest_probes
from predictor.predictor import Predictor
from profiling.workload import ColocationSet, Workload

JOB = Workload("alpha", 32)
PARTNERS = tuple(
    map(Workload.parse, ("beta:batch_size=16,step_time_s=0.03", "gamma:batch_size=16,step_time_s=0.02"))
)


@pytest.mark.parametrize("sharing", ["time-slice", "mps"])
def test_the_job_alone(predictor: Predictor, sharing: str) -> None:
    posterior = Posterior(predictor)
    plan = suggest_probes(posterior, "v100", JOB, PARTNERS, 3, sharing)
    errors = [plan.error_ratio, *(probe.error_ratio for probe in plan.probes)]
    assert errors == sorted(errors, reverse=True)
    (number,) = [k for k, probe in enumerate(plan.probes) if probe.jobs == (str(JOB),)]
    # The observations before it, as predicted; then the job alone.
    for probe in plan.probes[: number + 1]:
        jobs = tuple(map(Workload.parse, probe.jobs))
        asked = ColocationSet("v100", jobs, sharing)
        step_s = predictor.predict_arrays([asked]).step_time_s[0]
        posterior.observe(Observation(asked, m, float(step_s[m])) for m in range(len(jobs)))
    after = suggest_probes(posterior, "v100", JOB, PARTNERS, 3, sharing)
    assert after.error_ratio == pytest.approx(plan.probes[number].error_ratio, rel=0.2)
    assert after.reasons == ("3 probes were asked for, but there are only 2 candidates",)
    assert all(len(probe.jobs) == 2 for probe in after.probes)


def test_a_stated_step_time_leaves_nothing_to_learn_alone(predictor: Predictor) -> None:
    stated = Workload.parse("alpha:batch_size=32,step_time_s=0.03")
    plan = suggest_probes(Posterior(predictor), "v100", stated, PARTNERS, 2)
    assert [len(probe.jobs) for probe in plan.probes] == [2, 2]
    assert plan.error_ratio < suggest_probes(Posterior(predictor), "v100", JOB, PARTNERS).error_ratio
