"""When jobs of the slice simulator end."""

from __future__ import annotations

import pytest

from scheduling.core.job import TraceJob
from scheduling.slices.costs import SliceCosts
from scheduling.slices.policies import get_slice_policy
from scheduling.slices.simulate import simulate_slices
from tests.scheduling.slices.rates import AmdahlPredictor


def test_jobs_that_end_at_one_moment_leave_together() -> None:
    """No controller saves a job and moves it to a larger slice at the moment at which it ends."""
    predictor = AmdahlPredictor([0.1], [4.0])
    jobs = [TraceJob(f"j{k}", predictor.jobs()[0], 1000.0) for k in range(4)]
    costs = SliceCosts(first_start_s=0.0, resume_s=30.0, checkpoint_s=0.0, report_s=0.0)
    policy = get_slice_policy("isacpp-slices", move_s=costs.move_s)
    result = simulate_slices(jobs, ["a100"], policy, predictor, predictor, costs)
    first, second = sorted(run.finished_s or 0.0 for run in result.jobs)[:2]
    assert second == pytest.approx(first)
