"""Completion times of every job equal those of a second simulator with an arithmetic of its own."""

from __future__ import annotations

import numpy as np
import pytest

from profiling.workload import Workload
from scheduling.beliefs.table import Solo, TablePredictor
from scheduling.core.job import TraceJob
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.truth import SetTruth
from scheduling.policies import get_policy
from scheduling.simulator.engine import simulate
from tests.scheduling.simulator.naive import POLICIES, RESTART_S, Naive
from tests.scheduling.tables import JOBS, table


def _uneven() -> TablePredictor:
    """Step times of which none is a multiple of another, and equal neighbours that slow each other equally."""
    rough, rng = table(2), np.random.default_rng(1)
    solo = {key: Solo(run.step_time_s * rng.uniform(0.8, 1.2)) for key, run in rough.solo.items()}
    ratios = {
        (device, members): (kept[0], kept[0]) if len(set(members)) == 1 else kept
        for (device, members), kept in rough.ratios.items()
    }
    return TablePredictor(solo, ratios)


TABLE = _uneven()
CLUSTERS = (
    [("v100", 5)],
    [("v100", 1)],
    [("v100", 2), ("k80", 3), ("v100", 1)],
    [("k80", 2), ("k80", 2), ("v100", 4)],
)


def _ratio(kind: str, own: Workload, other: Workload) -> float:
    values = TABLE.measured(kind, [own, other])
    assert values is not None
    return values[0]


def _trace(seed: int, most: int) -> list[TraceJob]:
    """Bursts, equal and negligible lengths, gangs and weights."""
    rng, now_s, jobs = np.random.default_rng(seed), 0.0, []
    for number in range(int(rng.integers(5, 40))):
        now_s += float(rng.choice([0.0, 0.0, rng.uniform(1, 200)]))
        jobs.append(
            TraceJob(
                f"j{number}", JOBS[rng.integers(6)], float(rng.choice([1e-6, 400.0, rng.uniform(1, 3000)])), now_s,
                int(min(rng.choice([1, 1, 1, 2, 3, 4]), most)), priority=float(rng.choice([1.0, 1.0, 3.0])),
            )
        )  # fmt: skip
    return jobs


# Which jobs `srtf` stops for a gang on several nodes is a rule of its own.
CASES = [(p, nodes) for p in POLICIES for nodes in CLUSTERS if p != "srtf" or len(nodes) == 1]


@pytest.mark.parametrize(("policy", "nodes"), CASES, ids=str)
def test_completion_times(policy: str, nodes: list[tuple[str, int]]) -> None:
    solo_s = {key: run.step_time_s for key, run in TABLE.solo.items()}
    most = max(sum(count for own, count in nodes if own == kind) for kind, _ in nodes)
    cluster = ClusterSnapshot.from_mapping(
        {"nodes": [{"name": f"n{k}", "gpus": [{"device": d, "count": n}]} for k, (d, n) in enumerate(nodes)]}
    )
    for seed in range(6):
        jobs = _trace(seed, most)
        result = simulate(jobs, cluster, get_policy(policy), SetTruth(TABLE, RESTART_S), TABLE)
        expected = Naive(nodes, solo_s, _ratio).run(jobs, policy)
        assert {job.id: job.finished_s for job in result.jobs} == pytest.approx(expected, rel=1e-9), seed
