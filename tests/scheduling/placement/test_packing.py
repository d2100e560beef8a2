from __future__ import annotations

from profiling.workload import Workload
from scheduling.core.job import JobState, TraceJob
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.packing import pack
from tests.scheduling.tables import JOBS, table


def test_shared_gpus_are_not_looked_at_while_there_are_empty_ones() -> None:
    nodes = [{"name": "n", "gpus": [{"device": "v100", "count": 4}]}]
    state, asked = SchedulingSnapshot(ClusterSnapshot.from_mapping({"nodes": nodes})), list[str]()
    for gpu in range(2):
        tenant = JobState(TraceJob(f"t{gpu}", JOBS[gpu], 100.0), gpu, 100.0, gpus=(gpu,))
        state.running[gpu] = tenant
        state.occupy(tenant)

    def demand(_device: str, _sharing: str, workload: Workload) -> float:
        asked.append(workload.model)
        return {"model-0": 0.3, "model-1": 0.1}.get(workload.model, 0.2)

    jobs = [JobState(TraceJob(f"j{k}", JOBS[2], 10.0), 10 + k, 10.0) for k in range(4)]
    first = pack(state, SetCache(table()), jobs[:2], demand)
    assert [a.gpus for a in first] == [(2,), (3,)]
    assert asked == []
    # The third joins the tenant with the least demand, the fourth the other one.
    assert [a.gpus for a in pack(state, SetCache(table()), jobs, demand)] == [(2,), (3,), (1,), (0,)]
    assert sorted(asked) == ["model-0", "model-1", "model-2"]
    # Within a budget, only the lighter one is joined.
    within = pack(state, SetCache(table()), jobs, demand, budget=0.4)
    assert [a.gpus for a in within] == [(2,), (3,), (1,)]
