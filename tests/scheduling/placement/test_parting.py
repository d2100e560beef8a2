from __future__ import annotations

import numpy as np
import pytest

from scheduling.core.job import TraceJob
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.truth import SetTruth
from scheduling.placement import parting
from scheduling.placement.ranking import PlacementConfig
from scheduling.policies.isacpp import isacpp
from scheduling.simulator.engine import simulate
from tests.scheduling.tables import JOBS, table

CLUSTER = ClusterSnapshot.from_mapping(
    {
        "nodes": [
            {"name": "fast", "gpus": [{"device": "v100", "count": 4}]},
            {"name": "slow", "gpus": [{"device": "k80", "count": 4}]},
        ]
    }
)


def _ends(seed: int) -> list[float | None]:
    rng = np.random.default_rng(seed)
    jobs = [
        TraceJob(f"j{k}", JOBS[int(rng.integers(5))], float(rng.uniform(20, 200)), float(rng.uniform(0, 120)))
        for k in range(24)
    ]
    policy = isacpp(PlacementConfig(max_members=2), restart_s=1.0)
    result = simulate(jobs, CLUSTER, policy, SetTruth(SetCache(table()), restart_s=1.0), table())
    assert sum(job.restarts for job in result.jobs) > 0  # somebody moved
    return [job.finished_s for job in result.jobs]


@pytest.mark.parametrize("seed", [1, 3, 4, 12])
def test_reexamining_only_changed_gpus_gives_the_same_decisions(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    always = _ends(seed)
    monkeypatch.setattr(parting, "_ALWAYS", 0)
    assert _ends(seed) == always
