"""Kubernetes scheduler extender, with the JSON of upstream's `extender/v1` types in either letter case."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from msgspec import structs
from structlog.testing import capture_logs

from predictor.types import Prediction, Quantity
from profiling.workload import ColocationSet
from serving.extender import handler
from tests.serving.conftest import Start
from tests.serving.problems import problem
from tests.serving.table import TablePredictor, TableSource

CLUSTER = {
    "nodes": [
        {"name": "empty", "gpus": [{"device": "v100", "count": 2}]},
        {
            "name": "busy",
            "gpus": [{"device": "v100", "tenants": [{"job": "resnet18-cifar", "iterations_left": 1e5}]}],
        },
        {"name": "old", "gpus": [{"device": "k80"}]},
        {"name": "bare", "gpus": []},
    ]
}
NAMES = ["empty", "busy", "old", "stranger"]


def pod(**annotations: str) -> dict[str, Any]:
    given = {f"cotenant.dev/{k.replace('_', '-')}": v for k, v in annotations.items()}
    # What kube-scheduler sends is a whole v1.Pod; these are the parts that matter and some that do not.
    return {
        "metadata": {
            "name": "train",
            "namespace": "ml",
            "uid": "1",
            "annotations": {"other.io/x": "y", **given},
        },
        "spec": {
            "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
            "priority": 0,
        },
        "status": {"phase": "Pending"},
    }


def lower(value: Any) -> Any:
    """First letters in lower case, as sent by a client with JSON tags."""
    return {k[0].lower() + k[1:]: v for k, v in value.items()}


@pytest.fixture
def cluster(client: TestClient) -> TestClient:
    assert client.put("/v1/cluster", json=CLUSTER).status_code == 200
    return client


@pytest.mark.parametrize("case", [dict, lower])
def test_filter_names(cluster: TestClient, case: Any) -> None:
    args = {
        "Pod": pod(workload="resnet18-cifar", batch_size="1200"),
        "Nodes": None,
        "NodeNames": [*NAMES, "bare"],
    }
    result = cluster.post("/extender/filter", json=case(args)).json()
    assert set(result) == {"Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"}
    assert result["NodeNames"] == ["empty", "busy", "stranger"]
    assert set(result["FailedAndUnresolvableNodes"]) == {"old", "bare"}
    assert "k80" in result["FailedAndUnresolvableNodes"]["old"]
    assert result["FailedNodes"] == {}
    assert result["Nodes"] is None
    assert result["Error"] == ""


@pytest.mark.parametrize("case", [dict, lower])
def test_filter_whole_nodes(cluster: TestClient, case: Any) -> None:
    items = [{"metadata": {"name": n, "labels": {"a": "b"}}, "status": {"capacity": {}}} for n in NAMES]
    args = {"Pod": pod(workload="resnet18-cifar:batch_size=1200"), "Nodes": {"metadata": {}, "items": items}}
    result = cluster.post("/extender/filter", json=case(args)).json()
    assert result["NodeNames"] is None
    assert result["Nodes"] == {"metadata": {}, "items": [items[0], items[1], items[3]]}


@pytest.mark.parametrize("case", [dict, lower])
def test_prioritize(cluster: TestClient, case: Any) -> None:
    args = {"Pod": pod(workload="resnet18-cifar", iterations="1000"), "NodeNames": NAMES}
    scores = {p["Host"]: p["Score"] for p in cluster.post("/extender/prioritize", json=case(args)).json()}
    assert scores["empty"] == 10
    assert 0 < scores["busy"] < 10
    assert scores["stranger"] == 0
    assert list(scores) == NAMES


@pytest.mark.parametrize("gpus", ["1", "2"])
def test_nodes_are_looked_at_off_the_event_loop(
    cluster: TestClient, gpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler asks about thousands; other requests must not wait for that."""
    threads: list[str] = []
    asked = handler._asked

    def watched(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return asked(*arguments)

    monkeypatch.setattr(handler, "_asked", watched)
    args = {"Pod": slice_pod({"nvidia.com/gpu": gpus}), "NodeNames": NAMES}
    assert cluster.post("/extender/filter", json=args).json()["NodeNames"] == NAMES
    assert cluster.post("/extender/prioritize", json=args).json()[0]["Score"] == 10
    assert len(threads) == 2
    assert all(name.startswith("cotenant-") for name in threads), threads


def test_nodes_compete_with_those_asked_about_only(cluster: TestClient) -> None:
    args = {"Pod": pod(workload="resnet18-cifar", iterations="1000"), "NodeNames": ["busy", "busy", "old"]}
    scores = cluster.post("/extender/prioritize", json=args).json()
    assert [p["Host"] for p in scores] == ["busy", "busy", "old"]
    assert max(p["Score"] for p in scores) == 10


def test_too_many_nodes_are_refused(start: Start) -> None:
    client, named = start(cluster_gpus=3), [{"metadata": {"name": name}} for name in NAMES]
    for nodes in ({"NodeNames": NAMES}, {"Nodes": {"items": named}}):
        args = {"Pod": pod(workload="resnet18-cifar")} | nodes
        assert "at most 3" in client.post("/extender/filter", json=args).json()["Error"]
        assert client.post("/extender/prioritize", json=args).json() == []


def test_pods_without_the_annotation_are_ignored(cluster: TestClient) -> None:
    args = {"Pod": pod(), "NodeNames": NAMES}
    assert cluster.post("/extender/filter", json=args).json()["NodeNames"] == NAMES
    assert {p["Score"] for p in cluster.post("/extender/prioritize", json=args).json()} == {0}
    assert (
        cluster.post("/extender/filter", json={"Pod": {"metadata": {}}, "NodeNames": []}).json()["NodeNames"]
        == []
    )


def test_gangs(cluster: TestClient) -> None:
    gang = pod(workload="resnet18-cifar")
    gang["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "2"
    scores = {
        p["Host"]: p["Score"]
        for p in cluster.post("/extender/prioritize", json={"Pod": gang, "NodeNames": NAMES}).json()
    }
    assert scores == {"empty": 10, "busy": 0, "old": 0, "stranger": 0}


SHARED = {
    "nodes": [
        {"name": sharing, "gpus": [{"device": "a100", "sharing": sharing}]}
        for sharing in ("time-slice", "mps", "mig")
    ]
}


@pytest.mark.parametrize("resource", ["gpu", "gpu.shared"])
def test_a_shared_gpu_may_be_advertised_several_times(client: TestClient, resource: str) -> None:
    """A node with one GPU and `replicas: 4` has `nvidia.com/gpu: 4`; the scheduler knows that number."""
    assert client.put("/v1/cluster", json=SHARED).status_code == 200
    args = {"Pod": slice_pod({f"nvidia.com/{resource}": "2"}), "NodeNames": ["time-slice", "mps", "mig"]}
    never = client.post("/extender/filter", json=args).json()["FailedAndUnresolvableNodes"]
    whole = {"mig": "the pod requests 2 GPUs and the node has 1"}
    assert never == (whole if resource == "gpu" else {})
    args["Pod"] = slice_pod({f"nvidia.com/{resource}": "2"}, batch_size="1000000")
    assert len(client.post("/extender/filter", json=args).json()["FailedAndUnresolvableNodes"]) == 3


def test_a_gang_needs_enough_gpus_that_fit_it(client: TestClient) -> None:
    nodes = [
        {"name": "mixed", "gpus": [{"device": "v100"}, {"device": "k80"}]},
        {"name": "enough", "gpus": [{"device": "v100", "count": 2}, {"device": "k80"}]},
    ]
    assert client.put("/v1/cluster", json={"nodes": nodes}).status_code == 200
    gang = pod(workload="resnet18-cifar:batch_size=1200")  # 13 GB: too much for a K80
    gang["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "2"
    args = {"Pod": gang, "NodeNames": ["mixed", "enough"]}
    result = client.post("/extender/filter", json=args).json()
    assert result["NodeNames"] == ["enough"]
    assert "fits on 1 of 2 GPUs: k80" in result["FailedAndUnresolvableNodes"]["mixed"]


@dataclass(eq=False)
class Paced(TablePredictor):
    """The table with other steps: 0.1 s alone on an H100, 0.2 s on a V100, 0.8 s on a K80."""

    def _one(self, asked: ColocationSet) -> Prediction:
        step_s = {"h100": 0.1, "v100": 0.2, "k80": 0.8}.get(asked.device, 0.1)
        step = Quantity(step_s, step_s, step_s)
        known = super()._one(asked)
        return replace(known, members=tuple(structs.replace(m, step_time_s=step) for m in known.members))


PACED = {
    "nodes": [
        {"name": name, "gpus": [{"device": device, "count": count} for device, count in gpus.items()]}
        for name, gpus in {
            "fast": {"h100": 2}, "fast-spare": {"h100": 4}, "middle": {"v100": 2}, "slow": {"k80": 2},
            "mixed": {"h100": 1, "k80": 1}, "both": {"k80": 2, "v100": 2}, "single": {"h100": 1},
        }.items()
    ]
}  # fmt: skip


def test_gangs_are_ranked_by_their_slowest_gpu(start: Start, source: TableSource) -> None:
    source.predictor = Paced()
    client = start()
    assert client.put("/v1/cluster", json=PACED).status_code == 200
    gang = pod(workload="resnet18-cifar")
    gang["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "2"
    names = [str(node["name"]) for node in PACED["nodes"]]
    scores = {
        p["Host"]: p["Score"]
        for p in client.post("/extender/prioritize", json={"Pod": gang, "NodeNames": names}).json()
    }
    # Half the pace is half the score, an eighth the least; two to spare cost one.
    assert scores == {"fast": 10, "fast-spare": 9, "middle": 5, "both": 4, "slow": 1, "mixed": 1, "single": 0}


SLICED = {
    "nodes": [
        {
            "name": "cut",
            "gpus": [{"id": "0/3g", "device": "a100:mig=3g"}, {"id": "0/4g", "device": "a100:mig=4g"}],
        },
        {"name": "small", "gpus": [{"id": f"0/{k}", "device": "a100:mig=1g"} for k in range(7)]},
        {"name": "whole", "gpus": [{"device": "a100"}]},
    ]
}
SLICED_NAMES = ["cut", "small", "whole", "stranger"]


def slice_pod(limits: dict[str, str], **annotations: str) -> dict[str, Any]:
    made = pod(**{"workload": "resnet18-cifar"} | annotations)
    made["spec"]["containers"][0]["resources"]["limits"] = limits
    return made


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({"nvidia.com/mig-3g.20gb": "1"}, ["cut", "stranger"]),
        ({"nvidia.com/mig-1g.5gb": "1"}, ["small", "stranger"]),
        ({"nvidia.com/mig-1g.5gb.me": "1"}, ["small", "stranger"]),
        ({"nvidia.com/mig-1g.5gb": "7"}, ["small", "stranger"]),
        ({"nvidia.com/mig-2g.10gb": "1"}, ["stranger"]),
        ({"nvidia.com/gpu": "1"}, SLICED_NAMES),
    ],
)
def test_pods_that_request_mig_slices(client: TestClient, limits: dict[str, str], kept: list[str]) -> None:
    assert client.put("/v1/cluster", json=SLICED).status_code == 200
    args = {"Pod": slice_pod(limits, iterations="1000"), "NodeNames": SLICED_NAMES}
    result = client.post("/extender/filter", json=args).json()
    assert result["Error"] == ""
    assert result["NodeNames"] == kept
    scores = {p["Host"]: p["Score"] for p in client.post("/extender/prioritize", json=args).json()}
    assert {name for name, score in scores.items() if score} == set(kept) - {"stranger"}


def test_a_slice_too_small_for_the_job(client: TestClient) -> None:
    assert client.put("/v1/cluster", json=SLICED).status_code == 200
    args = {
        "Pod": slice_pod({"nvidia.com/mig-1g.5gb": "1"}, batch_size="500"),
        "NodeNames": ["small", "cut"],
    }
    never = client.post("/extender/filter", json=args).json()["FailedAndUnresolvableNodes"]
    assert "a100:mig=1g" in never["small"]
    assert never["cut"] == "the node has no MIG slice 1g.5gb"


def test_slices_are_no_gpus_on_a_node_with_whole_cards(client: TestClient) -> None:
    """Under the `mixed` strategy `nvidia.com/gpu` is a whole card; here one is busy, and the slices are empty."""
    tenants = [{"job": "resnet18-cifar", "iterations_left": 1e5}]
    card, part = {"id": "0", "device": "a100"}, {"id": "1/3g", "device": "a100:mig=3g"}
    nodes = [
        {"name": "mixed", "gpus": [card | {"tenants": tenants}, part, part | {"id": "1/4g"}]},
        {"name": "busy", "gpus": [card | {"tenants": tenants}]},
    ]
    assert client.put("/v1/cluster", json={"nodes": nodes}).status_code == 200
    args = {"Pod": slice_pod({"nvidia.com/gpu": "1"}), "NodeNames": ["mixed", "busy"]}
    scores = {p["Host"]: p["Score"] for p in client.post("/extender/prioritize", json=args).json()}
    assert scores == {"mixed": 10, "busy": 10}


@pytest.mark.parametrize("other", ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb"])
def test_a_pod_with_several_kinds_of_gpu(client: TestClient, other: str) -> None:
    args = {"Pod": slice_pod({"nvidia.com/mig-3g.20gb": "1", other: "1"}), "NodeNames": ["cut"]}
    never = client.post("/extender/filter", json=args).json()["FailedAndUnresolvableNodes"]
    assert "several kinds" in never["cut"]


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        ("mig-1c.3g.20gb", "mig-3g.20gb"),
        ("mig-2c.4g.20gb.shared", "mig-4g.20gb"),
        ("mig-half", "mig-3g.20gb"),
    ],
)
def test_parts_of_a_slice_are_no_whole_gpu(client: TestClient, resource: str, expected: str) -> None:
    args = {"Pod": slice_pod({f"nvidia.com/{resource}": "1"}), "NodeNames": ["cut"]}
    told = client.post("/extender/filter", json=args).json()["FailedAndUnresolvableNodes"]["cut"]
    assert f"expected a whole slice such as nvidia.com/{expected}, got nvidia.com/{resource}" in told
    assert client.post("/extender/prioritize", json=args).json() == [{"Host": "cut", "Score": 0}]
    args["Pod"] = slice_pod({f"nvidia.com/{resource}": "0"})
    assert client.post("/extender/filter", json=args).json()["NodeNames"] == ["cut"]


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"Pod": 1, "NodeNames": []},
        {"Pod": pod(workload="resnet18-cifar")},
        {"Pod": pod(workload="resnet18-cifar"), "NodeNames": [1]},
        {"Pod": pod(workload="resnet18-cifar"), "Nodes": {"items": [{}]}},
        {"Pod": pod(workload="resnet18-cifar"), "Nodes": "node-a"},
        {"Pod": pod(workload="resnet18-cifar"), "Nodes": []},
    ],
)
def test_errors_have_status_200(cluster: TestClient, args: Any) -> None:
    result = cluster.post("/extender/filter", json=args)
    assert result.status_code == 200
    assert result.json()["Error"]
    scores = cluster.post("/extender/prioritize", json=args)
    assert scores.status_code == 200
    assert all(p["Score"] == 0 for p in scores.json())


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (pod(workload="no-such-model"), "unknown model"),
        (pod(workload="resnet18-cifar", batch_size="many"), "cotenant.dev/batch-size"),
        (pod(workload="resnet18-cifar", batch_size="1000000000"), "batch_size is out of range"),
        (pod(workload="resnet18-cifar", batch_size="9x" * 50_000), "batch_size is not an integer"),
        (pod(workload=f"resnet18-cifar:batch_size={'x' * 100_000}"), "resnet18-cifar:batch_size=xxx"),
        (pod(workload="x" * 100_000), "unknown model"),
        (pod(workload="resnet18-cifar", objective="speed"), "cotenant.dev/objective"),
        (pod(workload="resnet18-cifar", batchsize="64"), "unknown annotation cotenant.dev/batchsize"),
        ({"metadata": {"annotations": "cotenant.dev/workload"}}, "metadata.annotations"),
        ({"metadata": {"annotations": [None]}}, "metadata.annotations"),
        (pod(workload="resnet18-cifar") | {"spec": {"containers": 1.5}}, "spec.containers"),
    ],
)
def test_a_mistake_in_a_pod_removes_every_node(
    cluster: TestClient, wrong: dict[str, Any], told: str, whole: bool
) -> None:
    """An `Error` would go unseen: where the extender is ignorable, the scheduler goes on without it."""
    items = [{"metadata": {"name": name}} for name in NAMES]
    args = {"Pod": wrong} | ({"Nodes": {"items": items}} if whole else {"NodeNames": NAMES})
    with capture_logs() as logs:
        result = cluster.post("/extender/filter", json=args).json()
    never = result.pop("FailedAndUnresolvableNodes")
    assert list(never) == NAMES
    assert all(
        told in reason and len(reason) < 800 for reason in never.values()
    )  # as often as there are nodes
    assert not result["Error"]
    assert (result["Nodes"]["items"] if whole else result["NodeNames"]) == []
    assert [told in entry["error"] for entry in logs if entry["event"] == "pod refused"] == [True]
    assert {p["Score"] for p in cluster.post("/extender/prioritize", json=args).json()} == {0}


@pytest.mark.parametrize("count", ["\u00b2", "2.5", "-1", "", "9" * 5000])
def test_a_limit_that_is_no_number_of_gpus_counts_as_one(cluster: TestClient, count: str) -> None:
    args = {
        "Pod": slice_pod({"nvidia.com/gpu": count}, workload="resnet18-cifar:batch_size=32"),
        "NodeNames": NAMES,
    }
    assert cluster.post("/extender/filter", json=args).json()["NodeNames"] == NAMES
    assert cluster.post("/extender/prioritize", json=args).json()[0]["Score"] == 10


def test_invalid_json(cluster: TestClient) -> None:
    json = {"Content-Type": "application/json"}
    assert cluster.post("/extender/filter", content=b"{", headers=json).json()["Error"]
    twice = cluster.post("/extender/filter", content=b'{"Pod": {}, "Pod": {}}', headers=json).json()
    assert "key 'Pod' is repeated" in twice["Error"]
    assert cluster.post("/extender/prioritize", content=b"{", headers=json).json() == []
    problem(cluster.post("/extender/filter", content=b"{}"), 415)
    problem(cluster.post("/extender/filter", content=b"{}", headers=json | {"Content-Encoding": "gzip"}), 415)


def test_without_a_model(start: Start, source: TableSource) -> None:
    source.error = RuntimeError("broken")
    client = start(wait=False)
    args = {"Pod": pod(workload="resnet18-cifar"), "NodeNames": NAMES}
    assert "no model" in client.post("/extender/filter", json=args).json()["Error"]
    assert {p["Score"] for p in client.post("/extender/prioritize", json=args).json()} == {0}
