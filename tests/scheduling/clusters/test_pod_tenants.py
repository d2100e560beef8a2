"""Running pods as tenants of an imported Kubernetes cluster."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from scheduling.clusters.importers import import_cluster
from scheduling.clusters.importers.kubernetes import nodes_of
from scheduling.clusters.importers.pod_tenants import SeenGpu
from scheduling.clusters.writing import to_yaml
from scheduling.core.snapshot import ClusterSnapshot

V100 = {"nvidia.com/gpu.product": "Tesla-V100-SXM2-16GB", "nvidia.com/gpu.memory": "16384"}
A100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu.count": "1"}


def node(name: str, labels: dict[str, str] = V100, **capacity: str) -> dict[str, Any]:
    resources = {f"nvidia.com/{key}": number for key, number in (capacity or {"gpu": "2"}).items()}
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "status": {"capacity": resources}}


def pod(
    name: str, where: str | None = "a", phase: str = "Running", limits: Any = None, **annotations: str
) -> dict[str, Any]:
    given = {f"cotenant.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    requested = limits or {"nvidia.com/gpu": "1"}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml", "creationTimestamp": name, "annotations": given},
        "spec": {"nodeName": where, "containers": [{"name": "c", "resources": {"limits": requested}}]},
        "status": {"phase": phase},
    }


def train(name: str, **more: Any) -> dict[str, Any]:
    return pod(name, **{"workload": "resnet18-cifar"} | more)


def seats(*items: dict[str, Any]) -> dict[str, list[str]]:
    """Pods by GPU."""
    cluster = import_cluster("kubectl", json.dumps({"kind": "List", "items": items}))
    return {
        f"{n.name}/{gpu.id}": [tenant.job_id.removeprefix("ml/") for tenant in gpu.tenants]
        for n, gpu in cluster.gpus()
    }


def test_annotated_pods_are_tenants() -> None:
    running = train("1", batch_size="64", iterations="500", max_slowdown="1.5")
    text = json.dumps({"items": [running, node("a", gpu="1")]})
    ((_, gpu),) = import_cluster("kubectl", text).gpus()
    (tenant,) = gpu.tenants
    assert (str(tenant.job), tenant.iterations_left, tenant.job_id, tenant.max_slowdown) == (
        "resnet18-cifar:batch_size=64", 500, "ml/1", 1.5,
    )  # fmt: skip


@pytest.mark.parametrize(("annotations", "left"), [({}, 36000), ({"step_time_s": "0.5"}, 7200)])
def test_a_pod_without_iterations_has_an_hour_left(annotations: dict[str, str], left: float) -> None:
    text = json.dumps({"items": [node("a", gpu="1"), train("1", **annotations)]})
    ((_, gpu),) = import_cluster("kubectl", text).gpus()
    assert gpu.tenants[0].iterations_left == left


def test_the_oldest_are_seated_first_one_per_gpu() -> None:
    assert seats(node("a"), node("b"), *(train(name) for name in "3142"), train("5", where="b")) == {
        "a/0": ["1", "3"], "a/1": ["2", "4"], "b/0": ["5"], "b/1": [],
    }  # fmt: skip


def test_only_pods_that_hold_a_gpu_count() -> None:
    others = [
        pod("plain"), train("pending", where=None), train("done", phase="Succeeded"),
        train("failed", phase="Failed"), train("elsewhere", where="z"),
    ]  # fmt: skip
    assert seats(node("a"), *others, train("starting", phase="Pending")) == {"a/0": ["starting"], "a/1": []}


def test_pods_sit_on_gpus_that_they_requested() -> None:
    sliced = node("s", A100, **{"mig-3g.20gb": "1", "mig-1g.5gb": "1"})
    items = [
        train("1", limits={"nvidia.com/gpu": "2"}),
        train("2"),
        train("3", where="s", limits={"nvidia.com/mig-1g.5gb": "1"}),
    ]
    got = seats(node("a"), sliced, *items)
    assert (got["a/0"], got["a/1"]) == (["1", "2"], ["1"])
    assert {key: jobs for key, jobs in got.items() if key.startswith("s/")} == {
        "s/3g.20gb-0": [], "s/1g.5gb-0": ["3"],
    }  # fmt: skip


def test_gpus_among_which_a_pod_had_a_choice_are_marked(tmp_path: Path) -> None:
    two_of_two = train("2", where="all", limits={"nvidia.com/gpu": "2"})
    sliced = node("s", A100, **{"mig-3g.20gb": "1", "mig-1g.5gb": "2"})
    slice_of = train("4", where="s", limits={"nvidia.com/mig-1g.5gb": "1"})
    nodes = node("a"), node("one", gpu="1"), node("all"), node("idle"), sliced
    items = [*nodes, train("1"), two_of_two, train("3", where="one"), slice_of]
    cluster = import_cluster("kubectl", json.dumps({"kind": "List", "items": items}))
    assumed = [f"{n.name}/{gpu.id}" for n, gpu in cluster.gpus() if gpu.tenants_assumed]
    assert assumed == ["a/0", "a/1", "s/1g.5gb-0", "s/1g.5gb-1"]
    (tmp_path / "cluster.yaml").write_text(to_yaml(cluster))
    assert ClusterSnapshot.load(tmp_path / "cluster.yaml") == cluster


@pytest.mark.parametrize(("phase", "assumed"), [("Pending", True), ("Running", False)])
def test_a_gpu_with_a_pod_that_has_not_started_is_marked(phase: str, assumed: bool) -> None:
    (of_node,) = nodes_of([node("a", gpu="1")], [train("1"), train("2", phase=phase)], {})
    (gpu,) = of_node.gpus
    assert (len(gpu.tenants), gpu.tenants_assumed) == (2, assumed)


@pytest.mark.parametrize(
    ("said", "expected", "assumed"),
    [
        ({"1": "A/0", "2": "B/1", "3": "B/1"}, [["1"], ["2", "3"]], False),
        ({"1": "A/1", "2": "B/0", "3": "A/1"}, [["2"], ["1", "3"]], False),
        ({"1": "A/0", "2": "B/0", "3": "A/0"}, [["1", "3"], ["2"]], False),
        ({"2": "B/1", "3": "B/0"}, [["1"], ["2", "3"]], True),
        ({"1": "A/0", "2": "B/0", "3": "C/0"}, [["1", "3"], ["2"]], True),
    ],
)
def test_pods_that_see_one_gpu_share_it(
    said: dict[str, str], expected: list[list[str]], assumed: bool
) -> None:
    seen = {f"ml/{name}": SeenGpu(*uuid.split("/")) for name, uuid in said.items()}
    (of_node,) = nodes_of([node("a")], [train(name) for name in "123"], {}, seen=seen)
    assert [[t.job_id.removeprefix("ml/") for t in gpu.tenants] for gpu in of_node.gpus] == expected
    assert {gpu.tenants_assumed for gpu in of_node.gpus} == {assumed}


def test_mistakes_and_crowds_are_skipped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    wrong = [
        train("w1", batchsize="64"), train("w2", workload="no-such-model"), train("w3", iterations="x"),
        train("w4", iterations="-1"), train("w5", max_slowdown="0.5"),
    ]  # fmt: skip
    many = [train(f"{k:02}") for k in range(17)]
    with caplog.at_level(logging.WARNING, "cotenant.importers"):
        got = seats(node("a", gpu="1"), *wrong, *many)
    assert got == {"a/0": [f"{k:02}" for k in range(16)]}
    told = "\n".join(caplog.messages)
    for part in (
        "ml/w1 is not imported: unknown annotation",
        "ml/w2",
        "no-such-model",
        "ml/w3",
        "ml/w4",
        "ml/w5",
        "ml/16",
    ):
        assert part in told
    assert len(caplog.messages) == 6
