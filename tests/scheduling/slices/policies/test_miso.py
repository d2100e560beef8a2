from __future__ import annotations

import pytest

from profiling.workload import Workload
from scheduling.core.job import TraceJob
from scheduling.slices.policies import get_slice_policy
from scheduling.slices.simulate import simulate_slices
from tests.scheduling.slices.rates import AmdahlPredictor


@pytest.mark.parametrize("policy", ["oracle", "miso"])
def test_a_job_that_an_empty_card_cannot_hold_goes_to_one_that_can(policy: str) -> None:
    truth = AmdahlPredictor([0.5, 0.5], [60, 3])
    jobs = [TraceJob("large", Workload("m-0"), 1000.0), TraceJob("small", Workload("m-1"), 1000.0)]
    result = simulate_slices(jobs, ["a100", "a100-80gb"], get_slice_policy(policy), truth, truth)
    assert [next(iter(run.served_s)) for run in result.jobs] == ["a100-80gb", "a100"]
