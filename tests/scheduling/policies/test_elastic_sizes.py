from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from scheduling.core.job import TraceJob
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.truth import SetTruth
from scheduling.policies import get_policy
from scheduling.policies.elastic_sizes import best_sizes
from scheduling.simulator.engine import SimulationConfig, simulate
from tests.scheduling.tables import JOBS, table


@pytest.mark.parametrize("seed", range(8))
def test_sizes_are_optimal(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs, gpus = int(rng.integers(2, 6)), int(rng.integers(6, 17))
    ladders = [[1, 2, 4, 8][: int(rng.integers(1, 5))] for _ in range(jobs)]
    rows = [(sizes, sorted(rng.uniform(0.1, 1.0, len(sizes)).tolist(), reverse=True)) for sizes in ladders]
    chosen = best_sizes(rows, gpus)

    def cost(picks: tuple[int, ...]) -> float:
        return sum(costs[sizes.index(p)] for p, (sizes, costs) in zip(picks, rows, strict=True))

    best = min((p for p in product(*ladders) if sum(p) <= gpus), key=cost)
    assert sum(chosen) <= gpus
    assert cost(tuple(chosen)) == pytest.approx(cost(best))


def test_no_job_waits_while_another_grows() -> None:
    assert best_sizes([], 4) == []
    assert best_sizes([([1, 2, 4], [1.0, 0.6, 0.3]), ([2], [1.0])], 4) == [2, 2]


TABLE = table()


def _sizes_held(policy: str, gpus_per_node: int, job: TraceJob) -> set[int]:
    """Numbers of GPUs that `job` held over time, alone on nodes of two types with `gpus_per_node` each."""
    cluster = ClusterSnapshot.from_mapping(
        {"nodes": [{"name": d, "gpus": [{"device": d, "count": gpus_per_node}]} for d in ("v100", "k80")]}
    )
    config = SimulationConfig(record=True)
    result = simulate([job], cluster, get_policy(policy), SetTruth(TABLE), TABLE, config)
    starts = [interval.start_s for interval in result.intervals]
    return {starts.count(start) for start in starts}


@pytest.mark.parametrize("policy", ["optimus", "optimus-shortest", "pollux", "sia"])
def test_a_range_may_be_wider_than_any_type(policy: str) -> None:
    assert _sizes_held(policy, 2, TraceJob("wide", JOBS[0], 2000.0, gpus=1, max_gpus=64)) == {2}


@pytest.mark.parametrize("policy", ["optimus", "optimus-shortest", "pollux", "sia", "icefrog-unfrozen"])
@pytest.mark.parametrize(("least", "most"), [(None, 3), (3, None), (3, 3), (None, 4)])
def test_a_missing_end_of_the_range_defaults_to_the_request(
    policy: str, least: int | None, most: int | None
) -> None:
    job = TraceJob("j", JOBS[0], 2000.0, gpus=3, min_gpus=least, max_gpus=most)
    assert _sizes_held(policy, 4, job) <= {3, most or 3}


@pytest.mark.parametrize("policy", ["optimus", "optimus-shortest", "pollux"])
def test_a_job_keeps_its_gpus_if_free_ones_are_scattered(policy: str) -> None:
    # Two fill one node, one and the elastic job the other; when the first ends a GPU is free on each.
    nodes = [{"name": f"n{k}", "gpus": [{"device": "v100", "count": 2}]} for k in range(2)]
    rigid = [TraceJob(f"rigid-{k}", JOBS[0], 500.0 if k == 0 else 20000.0) for k in range(3)]
    elastic = TraceJob("elastic", JOBS[0], 5000.0, gpus=1, min_gpus=1, max_gpus=2)
    cluster = ClusterSnapshot.from_mapping({"nodes": nodes})
    result = simulate([*rigid, elastic], cluster, get_policy(policy), SetTruth(TABLE), TABLE)
    (job,) = [job for job in result.jobs if job.id == "elastic"]
    assert job.finished_s is not None
    # It runs all the time, whatever it is given.
    assert job.finished_s <= 5000.0 * TABLE.solo["v100", JOBS[0]].step_time_s * (1 + 1e-9)


@pytest.mark.parametrize("policy", ["optimus", "optimus-shortest", "pollux", "icefrog-unfrozen"])
@pytest.mark.parametrize("types", [("v100", "k80"), ("k80", "v100")])
def test_equal_jobs_do_not_take_each_others_gpus(policy: str, types: tuple[str, str]) -> None:
    # Two of three start, one on the slow type; the third waits until one of them ends.
    cluster = ClusterSnapshot.from_mapping({"nodes": [{"name": d, "gpus": [{"device": d}]} for d in types]})
    jobs = [TraceJob(f"j{k}", JOBS[0], 20_000.0) for k in range(3)]
    result = simulate(jobs, cluster, get_policy(policy), SetTruth(TABLE), TABLE)
    assert sum(job.restarts for job in result.jobs) == 0


@pytest.mark.parametrize("types", [("v100", "v100"), ("v100", "k80")])
def test_two_equal_jobs_seldom_take_gpus_from_each_other(types: tuple[str, str]) -> None:
    # On three GPUs, of which only one job can have both of the first node.
    nodes = [{"name": f"n{k}", "gpus": [{"device": d, "count": 2 - k}]} for k, d in enumerate(types)]
    jobs = [TraceJob(f"j{k}", JOBS[0], 60_000.0, max_gpus=2) for k in range(2)]
    cluster = ClusterSnapshot.from_mapping({"nodes": nodes})
    result = simulate(jobs, cluster, get_policy("optimus-shortest"), SetTruth(TABLE), TABLE)
    rounds = max(job.finished_s or 0.0 for job in result.jobs) / 60
    assert sum(job.restarts for job in result.jobs) < rounds / 5


@pytest.mark.parametrize("policy", ["optimus", "pollux", "sia", "sia-packed", "icefrog-unfrozen"])
def test_a_job_that_would_wait_uses_gpus_left_by_a_gang_without_a_node(policy: str) -> None:
    # Two GPUs are free, on two nodes: the gang needs them on one, and the last job is given none.
    nodes = [{"name": f"n{k}", "gpus": [{"device": "v100", "count": 3 - 2 * k}]} for k in range(2)]
    stays = TraceJob("stays", JOBS[0], 50_000.0, gpus=2, preemptible=False)
    gang = TraceJob("gang", JOBS[0], 1000.0, 1.0, gpus=2)
    single = TraceJob("single", JOBS[0], 5000.0, 2.0)
    cluster = ClusterSnapshot.from_mapping({"nodes": nodes})
    result = simulate([stays, gang, single], cluster, get_policy(policy), SetTruth(TABLE), TABLE)
    ends = {job.id: job.finished_s for job in result.jobs}
    assert ends["single"] == pytest.approx(600.0 + 5000.0 * 0.1, abs=600.0)
    assert ends["gang"] > ends["stays"] >= 5000.0
