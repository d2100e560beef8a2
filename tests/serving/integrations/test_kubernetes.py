"""The Kubernetes controller with the official client, against a stand-in for the API server."""

from __future__ import annotations

import logging
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from profiling.errors import InputError, UnavailableError
from serving.app import create_app
from serving.config import ServiceConfig
from serving.integrations import kubernetes
from serving.integrations.api_server import ApiServer
from serving.integrations.ask import ServiceClient
from serving.integrations.kubernetes import KubernetesConfig, look
from tests.scheduling.clusters.test_pod_tenants import node, pod, train
from tests.serving.integrations.kubernetes_stand_in import (
    CONFIG,
    StandIn,
    Stored,
    looks,
    nothing,
    stand_in,
)
from tests.serving.live import serve
from tests.serving.table import TableSource

__all__ = ["stand_in"]


def test_running_pods_become_tenants_and_leave_again(
    tmp_path: Path, stand_in: tuple[StandIn, ApiServer]
) -> None:
    state, api = stand_in
    state.nodes = [node("a", gpu="1"), node("b", gpu="1")]
    args = {"Pod": train("new", where=None, iterations="1000"), "NodeNames": ["a", "b"]}
    with serve(create_app(ServiceConfig(database_url=f"sqlite:///{tmp_path}/s.db"), TableSource())) as port:
        service = ServiceClient(f"http://127.0.0.1:{port}")

        def best() -> str:
            answer = httpx.post(f"{service.url}/extender/prioritize", json=args).json()
            return "".join(p["Host"] for p in answer if p["Score"] == 10)

        for pods, expected in (
            ([], "ab"),
            ([train("1", where="a", iterations="100000")], "b"),
            ([train("2", where="b")], "a"),
            ([], "ab"),
        ):
            state.pods = pods
            assert look(service, CONFIG, api)
            assert best() == expected
        state.nodes, state.pods = [node("odd", {"nvidia.com/gpu.product": "Abacus"}, gpu="1")], []
        assert not look(service, CONFIG, api)
        assert len(httpx.get(f"{service.url}/v1/cluster").json()["cluster"]["nodes"]) == 2, "kept as it was"
        state.nodes = [{"metadata": {"name": "cpu"}, "status": {"capacity": {"cpu": "8"}}}]
        assert look(service, CONFIG, api), "the last node with GPUs was removed"
        assert httpx.get(f"{service.url}/v1/cluster").json()["cluster"]["nodes"] == []


@pytest.mark.parametrize(
    "annotations",
    [
        {"max-slowdown": "inf"},
        {"max-slowdown": "1e9"},
        {"memory-bytes": "1e30"},
        {"sm-share-ratio": "0.00001"},
        {"workload": "graph:" + "0" * 64},
    ],
)
def test_a_pod_that_the_service_does_not_accept_is_left_out(
    tmp_path: Path,
    stand_in: tuple[StandIn, ApiServer],
    caplog: pytest.LogCaptureFixture,
    annotations: dict[str, str],
) -> None:
    """Anybody may annotate a pod; the others still become tenants."""
    state, api = stand_in
    state.nodes = [node("a", gpu="1")]
    odd = train("odd", where="a")
    odd["metadata"]["annotations"] |= {f"cotenant.dev/{key}": text for key, text in annotations.items()}
    state.pods = [odd, train("1", where="a", iterations="1000")]
    with serve(create_app(ServiceConfig(database_url=f"sqlite:///{tmp_path}/s.db"), TableSource())) as port:
        service = ServiceClient(f"http://127.0.0.1:{port}")
        assert look(service, CONFIG, api)
        stored = service.cluster()
    assert stored is not None
    assert [tenant["job_id"] for tenant in stored["cluster"]["nodes"][0]["gpus"][0]["tenants"]] == ["ml/1"]
    assert "odd is not imported" in caplog.text


def test_a_graph_that_the_service_has_as_a_tenant_is_not_asked_about() -> None:
    class Asked(Stored):
        asked = 0

        def lacks(self, _graph: str) -> bool:
            self.asked += 1
            return False

    service, own = Asked(), train("1", where="a", workload="graph:" + "0" * 64)
    jobs = kubernetes._Jobs(service)  # type: ignore[arg-type]
    assert jobs.read(own) is not None
    assert jobs.read(own) is not None
    tenants = [{"job": {"workload": "graph:" + "0" * 64}}]
    stored = {"nodes": [{"gpus": [{"tenants": tenants}]}]}
    assert kubernetes._Jobs(service, stored).read(own) is not None  # type: ignore[arg-type]
    assert service.asked == 1


def test_all_pages_are_read_and_only_bound_pods_asked_for(stand_in: tuple[StandIn, ApiServer]) -> None:
    state, api = stand_in
    state.nodes = [node(name) for name in "abcde"]
    assert [item["metadata"]["name"] for item in api.nodes()] == list("abcde")
    assert api.pods() == []
    assert state.selectors == {"", "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"}


def test_only_what_is_read_is_kept(stand_in: tuple[StandIn, ApiServer]) -> None:
    """All nodes and pods of a large cluster take gigabytes."""
    state, api = stand_in
    large: dict[str, Any] = {"images": [{"names": ["a"]}]}
    state.nodes = [node("a") | {"status": large | node("a")["status"]}]
    state.pods = [pod("other"), train("1")]
    state.pods[1]["metadata"]["managedFields"] = [large]
    assert "images" not in api.nodes()[0]["status"]
    (kept,) = api.pods()
    assert kept == train("1")


def test_a_node_that_cannot_be_read_is_left_out(
    stand_in: tuple[StandIn, ApiServer], caplog: pytest.LogCaptureFixture
) -> None:
    state, api = stand_in
    strange = {"nvidia.com/gpu.product": "Tesla-V100-SXM2-16GB", "nvidia.com/gpu.count": "two"}
    state.nodes = [node("a"), node("odd", {"nvidia.com/gpu.product": "Abacus"}), node("strange", strange)]
    service: Any = Stored()
    assert look(service, CONFIG, api)
    assert service.nodes() == [["a"]]
    assert "node odd is left out" in caplog.text
    assert "node strange is left out: a label or capacity has another format" in caplog.text
    assert look(service, KubernetesConfig(devices={"Abacus": "v100"}), api)
    assert service.nodes()[-1] == ["a", "odd"]


def test_a_refusal_of_the_api_server(
    stand_in: tuple[StandIn, ApiServer], caplog: pytest.LogCaptureFixture
) -> None:
    state, api = stand_in
    state.status = 403
    with pytest.raises(UnavailableError, match="403"):
        api.nodes()
    service: Any = Stored()
    assert not look(service, CONFIG, api)
    assert not service.nodes()
    assert "the API server refused" in caplog.text


def test_only_changes_are_uploaded(
    monkeypatch: pytest.MonkeyPatch, stand_in: tuple[StandIn, ApiServer]
) -> None:
    state, api = stand_in
    state.nodes = [node("a")]
    service: Any = Stored()
    looks(monkeypatch, service, CONFIG, api, nothing, lambda: state.nodes.append(node("b")), nothing)
    assert service.nodes() == [["a"], ["a", "b"]]


def test_an_unchanged_cluster_is_uploaded_again_if_the_stored_one_has_changed(
    monkeypatch: pytest.MonkeyPatch, stand_in: tuple[StandIn, ApiServer]
) -> None:
    state, api = stand_in
    state.nodes = [node("a")]
    service: Any = Stored()

    def somebody_else() -> None:
        service.version += 1

    looks(monkeypatch, service, replace(CONFIG, repeat_s=1e-9), api, nothing, somebody_else)
    assert service.nodes() == [["a"], ["a"]]


@pytest.mark.parametrize(("repeat_s", "uploads"), [(60.0, 1), (1e-9, 3)])
def test_progress_is_uploaded_now_and_then(
    monkeypatch: pytest.MonkeyPatch, stand_in: tuple[StandIn, ApiServer], repeat_s: float, uploads: int
) -> None:
    state, api = stand_in
    state.nodes, pod = [node("a", gpu="1")], train("1", iterations="1e11")
    pod["status"]["startTime"] = "2020-01-01T00:00:00Z"
    state.pods = [pod]
    service: Any = Stored()
    looks(monkeypatch, service, replace(CONFIG, repeat_s=repeat_s), api, nothing, nothing)
    lefts = [body["nodes"][0]["gpus"][0]["tenants"][0]["iterations_left"] for body in service.bodies]
    assert len(lefts) == uploads
    assert lefts[0] < 1e11 - 2e9  # six years and more in steps of 0.1 s
    assert lefts == sorted(set(lefts), reverse=True)


def test_links_stay_as_they_are_stored(stand_in: tuple[StandIn, ApiServer]) -> None:
    state, api = stand_in
    state.nodes = [node("a"), node("b")]
    service: Any = Stored()
    service.links = [{"between": ["a", "b"], "bytes_per_s": 1e9}]
    assert look(service, CONFIG, api)
    assert service.bodies[0]["links"] == service.links


def test_what_the_service_did_not_take_is_uploaded_again(
    monkeypatch: pytest.MonkeyPatch, stand_in: tuple[StandIn, ApiServer]
) -> None:
    state, api = stand_in
    state.nodes = [node("a")]
    service: Any = Stored(usable=False)
    looks(monkeypatch, service, CONFIG, api, nothing)
    assert service.nodes() == [["a"], ["a"]]


def test_a_lasting_mistake_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, stand_in: tuple[StandIn, ApiServer], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    state, api = stand_in
    state.nodes = [node("a"), node("odd", {"nvidia.com/gpu.product": "Abacus"})]
    state.pods = [train("1", batch_size="many")]
    looks(monkeypatch, Stored(), CONFIG, api, nothing, nothing)
    for part in ("node odd is left out", "pod ml/1 is not imported", "uploaded 1 nodes, 2 GPUs, 0 tenants"):
        assert caplog.text.count(part) == 1


def test_a_service_that_is_down_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, stand_in: tuple[StandIn, ApiServer], caplog: pytest.LogCaptureFixture
) -> None:
    state, api = stand_in
    state.nodes = [node("a")]
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        service = ServiceClient(f"http://127.0.0.1:{unused.getsockname()[1]}", timeout_s=1.0)
        looks(monkeypatch, service, CONFIG, api, nothing, nothing)
    assert caplog.text.count("the service does not respond") == 1


def test_periods_are_checked() -> None:
    with pytest.raises(InputError, match="period_s"):
        KubernetesConfig(period_s=0.0)
    with pytest.raises(InputError, match="repeat_s"):
        KubernetesConfig(repeat_s=0.0)


@pytest.mark.parametrize("text", [None, "a: [", "plain text", "{}"])
def test_without_a_usable_kubeconfig(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "config").write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with pytest.raises(UnavailableError, match="a kubeconfig or a pod's service account"):
        ApiServer.connect()
