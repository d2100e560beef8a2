"""Jobs that state an SM share of their own, on partitioned and shared cards."""

from __future__ import annotations

import pytest

from profiling.workload import Workload
from scheduling.beliefs.slice_table import SliceTable
from scheduling.beliefs.table import Solo
from scheduling.core.job import TraceJob
from scheduling.slices.costs import SliceCosts
from scheduling.slices.policies import get_slice_policy
from scheduling.slices.simulate import simulate_slices

# Its time is inversely proportional to the size of its slice.
TABLE = SliceTable(
    {(f"a100:mig={size}g", Workload("parallel")): Solo(0.7 / size) for size in (1, 2, 3, 4, 7)}
)


@pytest.mark.parametrize(("own", "got"), [(1.0, 0.33), (0.5, 0.33), (1 / 7, 1 / 7)])
def test_a_limit_on_all_jobs_of_a_card_raises_no_share(own: float, got: float) -> None:
    def finished_s(share: float, policy: str) -> float | None:
        jobs = [TraceJob("j", Workload("parallel", sm_share_ratio=share), 1000.0)]
        free = SliceCosts(0.0, 0.0, 0.0, 0.0, 0.0)
        return (
            simulate_slices(jobs, ["a100"], get_slice_policy(policy), TABLE, TABLE, free).jobs[0].finished_s
        )

    assert finished_s(own, "mps") == pytest.approx(finished_s(got, "full"))
