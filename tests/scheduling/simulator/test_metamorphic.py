"""What must not matter to any policy: when time starts, names, units, and what no job can use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from scheduling.beliefs.table import Solo, TablePredictor
from scheduling.core.job import TraceJob
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.truth import SetTruth
from scheduling.policies import POLICIES, get_policy
from scheduling.simulator.engine import simulate
from tests.scheduling.tables import JOBS, table

RESTART_S = 30.0
NODES = (
    {"name": "a", "gpus": [{"device": "v100", "count": 2}]},
    {"name": "b", "gpus": [{"device": "v100"}]},
    {"name": "c", "gpus": [{"device": "k80", "count": 4}]},
    {"name": "d", "gpus": [{"device": "v100"}]},
)


def uneven() -> TablePredictor:
    """The table with step times of which none is a multiple of another, so that few choices are ties."""
    rough = table(3, seed=5)
    rng = np.random.default_rng(11)
    solo = {
        key: Solo(one.step_time_s * rng.uniform(0.8, 1.2), one.memory_bytes, one.utilization_ratio)
        for key, one in rough.solo.items()
    }
    return TablePredictor(solo, rough.ratios, rough.memory_bytes)


TABLE = uneven()


def trace(seed: int) -> list[TraceJob]:
    """Three to nine jobs, the first at time 0, with gangs, users, weights and deadlines."""
    rng, now, jobs = np.random.default_rng(seed), 0.0, []
    for number in range(int(rng.integers(3, 10))):
        if number:
            now += float(rng.choice([0.5, 7.3, 61.7, 359.1, 2000.3])) + float(rng.uniform(0, 1))
        jobs.append(
            TraceJob(
                f"j{number}", JOBS[rng.integers(6)], float(rng.uniform(50, 6000)), now,
                int(rng.choice([1, 1, 1, 2])), user="ab"[number % 2], priority=float(rng.choice([1, 1, 0.5, 4])),
                deadline_s=(None, 400.0, 1e5)[rng.integers(3)],
            )
        )  # fmt: skip
    return jobs


def ends_s(
    policy: str, jobs: Sequence[TraceJob], nodes: Sequence[object] = NODES, predictor: TablePredictor = TABLE
) -> list[float]:
    """When each job ends, in the order given."""
    cluster = ClusterSnapshot.from_mapping({"nodes": list(nodes)})
    result = simulate(jobs, cluster, get_policy(policy), SetTruth(predictor, RESTART_S), predictor)
    ended = {job.id: job.finished_s for job in result.jobs}
    return [float(ended[job.id] or np.inf) for job in jobs]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_later_trace_ends_later_by_as_much(policy: str) -> None:
    shift_s = 7200.0  # of all rounds that start at multiples of their length
    for seed in range(4):
        jobs = trace(seed)
        later = [replace(job, submit_s=job.submit_s + shift_s) for job in jobs]
        expected = [end + shift_s for end in ends_s(policy, jobs)]
        assert ends_s(policy, later) == pytest.approx(expected, abs=1e-3), f"seed {seed}"


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_names_and_the_order_of_the_list_do_not_matter(policy: str) -> None:
    for seed in range(2):
        jobs = trace(seed)
        expected = ends_s(policy, jobs)
        renamed = [replace(job, id=f"x{99 - n}") for n, job in enumerate(jobs)]
        assert ends_s(policy, renamed) == pytest.approx(expected, abs=1e-3), f"seed {seed}"
        assert ends_s(policy, jobs[::-1])[::-1] == pytest.approx(expected, abs=1e-3), f"seed {seed}"
        nodes = [{**node, "name": f"n{9 - n}"} for n, node in enumerate(NODES)]
        assert ends_s(policy, jobs, nodes) == pytest.approx(expected, abs=1e-3), f"seed {seed}"
