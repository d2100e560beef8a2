"""Jobs that can never run are named before a simulation starts."""

from __future__ import annotations

import pytest

from profiling.errors import InfeasibleError
from scheduling.core.job import TraceJob
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.state import SchedulingSnapshot
from scheduling.simulator.feasibility import infeasible_jobs, without_infeasible
from tests.scheduling.tables import JOBS, table

SNAPSHOT = SchedulingSnapshot(
    ClusterSnapshot.from_mapping({"nodes": [{"gpus": [{"device": "v100"}, {"device": "k80", "count": 2}]}]})
)


def test_gangs_and_memory() -> None:
    jobs = [
        TraceJob("fits", JOBS[0], 1.0),
        TraceJob("pair", JOBS[0], 1.0, gpus=2),
        TraceJob("large", JOBS[0], 1.0, gpus=3),
        TraceJob("elastic", JOBS[0], 1.0, gpus=2, min_gpus=1, max_gpus=8),
        TraceJob("large-elastic", JOBS[0], 1.0, gpus=8, min_gpus=1),  # fifo would never start it
        TraceJob("heavy", JOBS[5], 1.0),  # 10 GiB: the V100's 12, not the K80's 9
        TraceJob("heavy-pair", JOBS[5], 1.0, gpus=2),
    ]
    reasons = infeasible_jobs(jobs, SNAPSHOT, SetCache(table(memory_gib=12.0)))
    assert list(reasons) == ["large", "large-elastic", "heavy-pair"]
    assert "3 GPUs" in reasons["large"]
    assert "8 GPUs" in reasons["large-elastic"]
    assert "k80" in reasons["heavy-pair"]
    kept, lines = without_infeasible(jobs, reasons, skip=True)
    assert [j.id for j in kept] == ["fits", "pair", "elastic", "heavy"]
    assert len(lines) == 3
    with pytest.raises(InfeasibleError, match=r"3 of 7 jobs.*large requests.*--skip-infeasible"):
        without_infeasible(jobs, reasons, skip=False)
    with pytest.raises(InfeasibleError, match="another cluster"):
        without_infeasible(jobs[2:3], {"large": "x"}, skip=True)
