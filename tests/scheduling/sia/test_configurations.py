from __future__ import annotations

import numpy as np
import pytest

from scheduling.core.job import TraceJob
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.truth import SetTruth
from scheduling.policies import get_policy
from scheduling.simulator.engine import simulate
from tests.scheduling.tables import JOBS, table

TABLE = table()


@pytest.mark.parametrize("policy", ["sia", "sia-packed"])
@pytest.mark.parametrize("nodes", [(4, 2, 2), (3, 3, 2), (8,), (2, 2, 2, 2), (4, 1, 1, 1, 1)])
@pytest.mark.parametrize("size", [3, 5, 7, 8])
def test_a_gang_runs_on_nodes_of_any_sizes(policy: str, nodes: tuple[int, ...], size: int) -> None:
    cluster = ClusterSnapshot.from_mapping(
        {"nodes": [{"name": f"n{k}", "gpus": [{"device": "v100", "count": n}]} for k, n in enumerate(nodes)]}
    )
    jobs = [
        TraceJob("rigid", JOBS[0], 1000.0, gpus=size),
        TraceJob("range", JOBS[1], 1000.0, gpus=size, min_gpus=size, max_gpus=size),
        TraceJob("small", JOBS[2], 1000.0),
    ]
    result = simulate(jobs, cluster, get_policy(policy), SetTruth(TABLE), TABLE)
    assert all(job.finished_s is not None for job in result.jobs)
    # Each keeps its GPUs from one round to the next.
    assert np.sum([job.restarts for job in result.jobs]) <= 3
