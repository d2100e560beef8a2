"""On a real Ray: a cluster of three node processes on this machine, one of which is killed. Skipped where Ray is not installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from predictor.evaluation.protocols.on_ray import spread_on_ray
from predictor.evaluation.protocols.protocol import Protocol, make_trial
from predictor.evaluation.protocols.registry import contenders
from predictor.evaluation.protocols.runner import collect, make_plan, run_missing
from profiling.campaign.on_ray import run_on_ray
from profiling.campaign.plan import PlannedRun
from profiling.campaign.runner import CampaignStatus
from profiling.campaign.slices import read_results
from profiling.errors import InputError, UnavailableError
from profiling.measure.request import RunRequest
from profiling.measure.settings import MeasureSettings
from profiling.ray_workers import RayWorkers
from tests.models.baselines.test_baselines import SOLO, TRAIN
from tests.profiling.campaign.support import record_of, small_plan

ray = pytest.importorskip("ray")
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    before = os.environ.get("PYTHONPATH")
    # Node processes and their workers take it from here.
    os.environ |= {
        "PYTHONPATH": str(ROOT),
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        "RAY_agent_register_timeout_ms": "120000",
    }
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.workers = [_node(made) for _ in range(2)]
    made.wait_for_nodes()
    yield made
    ray.shutdown()
    made.shutdown()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


def _node(cluster: Any, attempts: int = 4) -> Any:
    """A node process; on a busy machine Ray's own agents may miss their 15 s."""
    for left in reversed(range(attempts)):
        try:
            return cluster.add_node(num_cpus=1)
        except Exception:
            if not left:
                raise
    raise AssertionError


def measure(request: RunRequest, _settings: MeasureSettings) -> dict[str, Any]:
    return record_of(request, 0.4) | {"notes": [ray.get_runtime_context().get_node_id()]}


def refuse() -> Any:
    def work(task: int) -> int:
        if task == 3:
            raise InputError("no such task", expected="not 3", got=task, hint="leave it out")
        return task * task

    return work


def test_folds_are_the_same_as_here(cluster: Any, tmp_path: Path) -> None:
    protocol = Protocol("mine", "a model never seen", ("mine-2026-01",), "by-model")
    trial = make_trial(protocol, {"colocation": TRAIN, "solo": SOLO})
    who = contenders(["constant", "additive"])
    here, there = (make_plan(trial, who, [0], tmp_path / name) for name in ("here", "there"))
    run_missing(here)
    run_missing(there, spread=lambda plan: spread_on_ray(plan, cluster.address))
    both = [collect(plan, resamples=5) for plan in (here, there)]
    for name in ("constant", "additive"):
        assert both[0][name]["metrics"] == both[1][name]["metrics"]


def test_an_error_comes_back_with_all_its_fields(cluster: Any) -> None:
    with RayWorkers[int, int](cluster.address, refuse) as workers:
        assert sorted(workers.run([0, 1, 2])) == [(0, 0), (1, 1), (2, 4)]
        with pytest.raises(InputError) as caught:
            list(workers.run([3]))
    assert (caught.value.expected, caught.value.got, caught.value.hint) == ("not 3", 3, "leave it out")


def test_a_campaign_outlives_a_node(cluster: Any, tmp_path: Path) -> None:
    plan, killed = small_plan(24), []

    def kill_one(_run: PlannedRun, now: CampaignStatus) -> None:
        if now.done == 6 and not killed:
            killed.append(cluster.workers[0].node_id)
            cluster.remove_node(cluster.workers[0], allow_graceful=False)

    final = run_on_ray(plan, tmp_path, cluster.address, measure=measure, on_done=kill_one)
    assert (final.done, final.total, final.failed) == (24, 24, 0)
    nodes = [record["notes"][0] for record in read_results([tmp_path]).records.values()]
    assert killed
    assert len(set(nodes)) == 3
    # Stored before it died; everything after is of the other two.
    assert 0 < nodes.count(killed[0]) < 8
    again = run_on_ray(plan, tmp_path, cluster.address, measure=measure, on_done=kill_one)
    assert again == final


def test_no_cluster_is_one_line() -> None:
    with pytest.raises(UnavailableError, match="no Ray cluster answers"):
        RayWorkers("127.0.0.1:1", refuse)
