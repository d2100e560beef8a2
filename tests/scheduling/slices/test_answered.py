from __future__ import annotations

import pytest

from predictor.examples.observations import Observation
from predictor.learning.posterior import Posterior
from predictor.load import load_predictor
from profiling.errors import InputError
from profiling.workload import ColocationSet, Workload
from scheduling.slices.answered import answered_plan, jobs_as_known
from scheduling.slices.options import SliceConfig

JOBS = [Workload.parse("resnet18-cifar:batch_size=64"), Workload.parse("lstm-wikitext2:batch_size=20")]
ALONE = SliceConfig(sharing=())


def test_a_plan_names_what_it_stands_on() -> None:
    plan = answered_plan(JOBS, [], "A100", load_predictor(), ALONE)
    body = plan.to_json()
    assert body["device"] == "a100"
    intervals = [j["step_time_interval_s"] for part in body["slices"] for j in part["jobs"]]
    assert len(intervals) == 2
    assert body["never_measured"] == list(plan.never_measured)
    assert plan.told == tuple(JOBS)


def test_what_was_observed_on_the_card_is_stated() -> None:
    posterior = Posterior(load_predictor())
    posterior.observe([Observation(ColocationSet("a100", (JOBS[0],)), 0, 0.05)] * 3)
    told, other = jobs_as_known(JOBS, [1e4, 1e4], "a100", posterior)
    assert told.workload.solo.step_time_s == pytest.approx(0.05, rel=0.01)
    assert other.workload == JOBS[1]


def test_observed_in_its_place_a_job_keeps_its_interval() -> None:
    """On the slice that was chosen; carried over to others, intervals are wide."""
    posterior = Posterior(load_predictor())
    devices = [f"a100:mig={name}" for name in ("1g", "2g", "3g", "4g", "7g")]
    posterior.observe(
        Observation(ColocationSet(device, (JOBS[0],)), 0, 0.08 / (k + 1)) for k, device in enumerate(devices)
    )
    answers = answered_plan(JOBS, [], "a100", posterior, ALONE).answers
    widths = {
        m.job.partition(":")[0]: m.step_time_s.upper / m.step_time_s.value
        for a in answers
        if a is not None
        for m in a.members
    }
    assert widths[JOBS[0].model] < 1.1 < 1.4 < widths[JOBS[1].model]


def test_iterations_are_one_per_job() -> None:
    with pytest.raises(InputError, match="expected 2 numbers, or none"):
        jobs_as_known(JOBS, [3.0], "a100", None)
