"""How far pods have come, by their running time and the service's step times."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from profiling.errors import UnavailableError
from scheduling.clusters.importers.kubernetes import nodes_of
from scheduling.core.snapshot import ClusterSnapshot
from serving.app import create_app
from serving.config import ServiceConfig
from serving.integrations.ask import ServiceClient
from serving.integrations.pod_progress import PodProgress, without_progress
from tests.scheduling.clusters.test_pod_tenants import node, train
from tests.serving.live import serve
from tests.serving.table import TableSource

AT_1000_S = "1970-01-01T00:16:40Z"


class Steps:
    """A service in which every job takes 0.1 s for each job on its GPU; None: it does not know the job."""

    def __init__(self) -> None:
        self.alone_s: float | None = 0.1
        self.responds = True
        self.asked: list[int] = []

    def step_times_s(self, _device: str, _sharing: str, jobs: Any) -> list[float] | None:
        self.asked.append(len(jobs))
        if not self.responds:
            raise UnavailableError("down")
        return None if self.alone_s is None else [self.alone_s * len(jobs)] * len(jobs)


class Clock:
    """Also the looks at a cluster of nodes `a` and `b` with two GPUs each."""

    def __init__(self) -> None:
        self.now_s, self.service = 1000.0, Steps()
        client: Any = self.service
        self.progress = PodProgress(client, lambda: self.now_s)

    def left(self, now_s: float, *pods: dict[str, Any]) -> dict[str, list[float]]:
        """Iterations left by pod, once for each of its GPUs."""
        self.now_s = now_s
        cluster = ClusterSnapshot(tuple(nodes_of([node("a"), node("b")], pods, {}))).to_mapping()
        self.progress.subtract(cluster, pods)
        left: dict[str, list[float]] = {}
        for own in cluster["nodes"]:
            for tenant in (tenant for gpu in own["gpus"] for tenant in gpu["tenants"]):
                left.setdefault(tenant["job_id"].removeprefix("ml/"), []).append(tenant["iterations_left"])
        return left


def running(name: str, since: str = AT_1000_S, **more: Any) -> dict[str, Any]:
    pod = train(name, **{"iterations": "10000"} | more)
    pod["status"]["containerStatuses"] = [{"state": {"running": {"startedAt": since}}}]
    return pod


def test_iterations_left_fall_while_a_pod_runs() -> None:
    clock, pod = Clock(), running("1")
    lefts = [clock.left(1000.0 + s, pod)["1"] for s in (0.0, 100.0, 500.0, 5000.0)]
    assert lefts == [[10000.0], [pytest.approx(9000.0)], [pytest.approx(5000.0)], [pytest.approx(100.0)]]
    assert clock.service.asked == [1], "the same set is asked about once"
    clock.progress.forget_steps()
    clock.left(6000.0, pod)
    assert clock.service.asked == [1, 1]


def test_a_pod_seen_for_the_first_time_has_run_since_its_start() -> None:
    assert Clock().left(1500.0, running("1"))["1"] == [pytest.approx(5000.0)]


def test_a_neighbour_slows_only_while_it_is_there() -> None:
    clock = Clock()
    alone = [running(name, where="a") for name in "12"]  # a GPU each
    assert clock.left(1100.0, *alone) == {"1": [pytest.approx(9000.0)], "2": [pytest.approx(9000.0)]}
    left = clock.left(1200.0, *alone, running("3", since="1970-01-01T00:18:20Z", where="a"))
    assert left == {"1": [pytest.approx(8500.0)], "2": [pytest.approx(8000.0)], "3": [pytest.approx(9500.0)]}
    assert clock.left(1300.0, *alone)["1"] == [pytest.approx(7500.0)]


def test_a_gang_is_as_fast_as_its_slowest_member() -> None:
    clock = Clock()
    gang = running("1", limits={"nvidia.com/gpu": "2"})
    assert clock.left(1100.0, gang, running("2"))["1"] == [pytest.approx(9500.0)] * 2


def test_containers_that_start_again_count_from_there() -> None:
    clock = Clock()
    clock.left(1500.0, running("1"))
    assert clock.left(1600.0, running("1", since="1970-01-01T00:26:40Z"))["1"] == [10000.0]
    assert clock.left(1700.0, running("1", since="1970-01-01T00:26:40Z"))["1"] == [pytest.approx(9000.0)]


@pytest.mark.parametrize(
    "change",
    [
        {"phase": "Pending"},
        {"containerStatuses": [{"state": {"waiting": {}}}]},
        {"containerStatuses": [], "startTime": "soon"},
        {"containerStatuses": None},
    ],
)
def test_a_pod_whose_start_is_unknown_has_everything_left(change: dict[str, Any]) -> None:
    pod = running("1")
    pod["status"] |= change
    assert Clock().left(1500.0, pod)["1"] == [10000.0]


def test_without_container_statuses_the_pods_start_counts() -> None:
    pod = train("1", iterations="10000")
    pod["status"]["startTime"] = AT_1000_S
    assert Clock().left(1500.0, pod)["1"] == [pytest.approx(5000.0)]


def test_a_pod_of_unknown_length_always_has_an_hour_left() -> None:
    pod = running("1")
    del pod["metadata"]["annotations"]["cotenant.dev/iterations"]
    clock = Clock()
    clock.service.alone_s = 0.5
    lefts = [clock.left(now_s, pod, running("2", where="a"))["1"] for now_s in (1000.0, 100_000.0)]
    assert lefts == [[7200.0]] * 2, "of its own steps, alone"
    clock.progress.forget_steps()
    clock.service.alone_s = None
    assert clock.left(100_000.0, pod)["1"] == [36_000.0], "of 0.1 s, if the service does not know it"


def test_a_gap_in_the_answers_is_made_up_for() -> None:
    clock, pod = Clock(), running("1")
    clock.service.alone_s = None
    assert clock.left(1100.0, pod)["1"] == [10000.0]
    clock.progress.forget_steps()
    clock.service.alone_s = 0.1
    assert clock.left(1200.0, pod)["1"] == [pytest.approx(8000.0)]


def test_a_service_that_does_not_respond_is_asked_once_in_each_look() -> None:
    clock, pods = Clock(), [running("1", where="a"), running("2", where="b", batch_size="32")]
    clock.service.responds = False
    assert clock.left(1100.0, *pods) == {"1": [10000.0], "2": [10000.0]}
    assert clock.service.asked == [1]
    clock.service.responds = True
    assert clock.left(1200.0, *pods) == {"1": [pytest.approx(8000.0)], "2": [pytest.approx(8000.0)]}
    assert clock.service.asked == [1, 1, 1]


def test_the_service_states_the_step_times(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pods = [running("1", where="a"), running("2", where="a")]
    cluster = ClusterSnapshot(tuple(nodes_of([node("a", gpu="1")], pods, {}))).to_mapping()
    seats = without_progress(cluster)
    with serve(create_app(ServiceConfig(database_url=f"sqlite:///{tmp_path}/s.db"), TableSource())) as port:
        client = ServiceClient(f"http://127.0.0.1:{port}")
        PodProgress(client, lambda: 1140.0).subtract(cluster, pods)
        # Two ResNets slow each other by 1.4, each step taking 0.14 s.
        lefts = [tenant["iterations_left"] for tenant in cluster["nodes"][0]["gpus"][0]["tenants"]]
        assert lefts == [pytest.approx(9000.0)] * 2
        assert without_progress(cluster) == seats
        with caplog.at_level(logging.WARNING, "cotenant.integrations"):
            assert client.step_times_s("no-such-gpu", "time-slice", ["resnet18-cifar"]) is None
    assert "the service returned 404" in caplog.text


def test_a_restarted_container_beside_a_sidecar_starts_anew() -> None:
    clock, pod = Clock(), running("1")
    assert clock.left(1500.0, pod)["1"] == [pytest.approx(5000.0)]
    sidecar = pod["status"]["containerStatuses"][0]
    restarted = {"state": {"running": {"startedAt": "1970-01-01T00:33:20Z"}}}
    pod["status"]["containerStatuses"] = [sidecar, restarted]
    assert clock.left(2000.0, pod)["1"] == [pytest.approx(10000.0)]
