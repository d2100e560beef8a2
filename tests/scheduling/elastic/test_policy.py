from __future__ import annotations

import itertools

import numpy as np
import pytest

from profiling.workload import Workload
from scheduling.elastic.agent import ElasticAgent, ElasticTruth, size_index
from scheduling.elastic.jobs import SIZES, IceFrogConfig
from scheduling.elastic.policy import icefrog, icefrog_unfrozen, optimus, pollux
from scheduling.policies.api import Policy
from scheduling.sets import SetCache
from scheduling.simulator.engine import SimulationConfig, simulate
from scheduling.simulator.job import Job
from scheduling.simulator.result import SimulationResult
from scheduling.snapshot import ClusterSnapshot, Gpu, Node
from tests.scheduling.elastic.test_pairs import Additive

CLUSTER = ClusterSnapshot(
    tuple(Node(f"n{n}", tuple(Gpu(str(g), "v100") for g in range(4))) for n in range(3))
)


def agent(job: Job) -> ElasticAgent:
    rate = np.array(SIZES)[:, None] ** 0.8 * np.array([1.0, 1.3, 1.6])[None, :]
    shares = np.broadcast_to(np.array([0.0, 0.2, 0.45]), (5, 3)).copy()
    return ElasticAgent((0, 3, 6), rate, np.linspace(0, 1, 5), shares, 2.0)


def run(policy: Policy, count: int = 20) -> SimulationResult:
    draw = np.random.default_rng(0)
    jobs = [
        Job(f"j{n}", Workload("x"), float(draw.uniform(200, 8000)), float(draw.uniform(0, 3000)), 1)
        for n in range(count)
    ]
    truth, config = ElasticTruth(), SimulationConfig(reevaluate_each_round=True, record=True)
    return simulate(jobs, CLUSTER, policy, truth, SetCache(Additive(100.0)), config, agent=agent)


@pytest.mark.parametrize("make", [icefrog, icefrog_unfrozen, optimus, pollux])
def test_every_job_is_done_and_no_gpu_is_held_twice(make: type) -> None:
    result = run(make())
    assert all(job.finished_s is not None for job in result.jobs)
    spans: dict[int, list[tuple[float, float]]] = {}
    for one in result.intervals:
        spans.setdefault(one.gpu, []).append((one.start_s, one.stop_s))
    for held in spans.values():
        held.sort()
        assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(held))


def test_freezing_pays_and_its_debt_is_capped() -> None:
    frozen, plain = run(icefrog()), run(icefrog_unfrozen())
    assert frozen.completion_s.mean() < plain.completion_s.mean()
    debts = [job.agent.debt for job in frozen.jobs]
    assert 0.0 < max(debts) < 0.2
    assert all(job.agent.debt == 0.0 for job in plain.jobs)


def test_decides_the_same_twice() -> None:
    one, two = run(icefrog(IceFrogConfig(shortness=1.0))), run(icefrog(IceFrogConfig(shortness=1.0)))
    np.testing.assert_array_equal(one.completion_s, two.completion_s)


def test_size_index() -> None:
    assert [size_index(n) for n in (0, 1, 4, 5, 8, 16, 20)] == [-1, 0, 3, 3, 4, 6, 6]
