"""The Ray integration's view of a cluster and its requests; `benchmarks.ray_integration` uses real Ray."""

from __future__ import annotations

import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest

from serving.integrations.ask import ServiceClient
from serving.integrations.ray import RayPlacer, Running
from tests.serving.integrations.test_slurm import away, service

__all__ = ["service"]

NODES = [
    {"NodeID": "head", "Alive": True, "Resources": {"CPU": 1.0}},
    {"NodeID": "one", "Alive": True, "Resources": {"GPU": 1.0, "accelerator_type:V100": 1.0}},
    {"NodeID": "two", "Alive": True, "Resources": {"GPU": 2.0, "accelerator_type:tesla": 1.0}},
    {"NodeID": "gone", "Alive": False, "Resources": {"GPU": 1.0, "accelerator_type:V100": 1.0}},
]


def test_cluster() -> None:
    assert [n["name"] for n in RayPlacer().cluster(NODES)["nodes"]] == ["one"]
    placer = RayPlacer(devices={"tesla": "k80"})
    now_s = time.time()
    placer.running["7"] = Running("lstm-wikitext2", 1000, "two", "0", now_s, 1e9)
    placer.started("7", "two", "1")
    first, second = placer.cluster(NODES)["nodes"]
    assert first["gpus"] == [{"id": "0", "device": "v100", "tenants": []}]
    assert [len(g["tenants"]) for g in second["gpus"]] == [0, 1]
    assert second["gpus"][1]["tenants"][0]["iterations_left"] > 999
    placer.ended("7")
    assert not any(g["tenants"] for n in placer.cluster(NODES)["nodes"] for g in n["gpus"])


def jobs_on(placer: RayPlacer) -> list[int]:
    """Jobs on each GPU of node `two`."""
    (two,) = (n for n in placer.cluster(NODES)["nodes"] if n["name"] == "two")
    return [len(gpu["tenants"]) for gpu in two["gpus"]]


def placed(*jobs: str, node: str = "two", gpu: str = "0") -> RayPlacer:
    placer = RayPlacer(devices={"tesla": "k80"})
    for job in jobs:
        placer.running[job] = Running("lstm-wikitext2", 1000, node, gpu, time.time(), 1e9)
    return placer


@pytest.mark.parametrize("ids", [("3", "2"), ("2", "1"), ("1", "2"), ("MIG-0a", "MIG-0b"), (3, 2)])
def test_ids_of_visible_devices(ids: tuple[str | int, str | int]) -> None:
    """Ray reports those in `CUDA_VISIBLE_DEVICES`, which need not count from 0."""
    placer = placed("a", "b", "c")
    placer.started("a", "two", ids[0])
    placer.ended("b")
    placer.ended("c")
    assert sorted(jobs_on(placer)) == [0, 1]
    first = jobs_on(placer).index(1)
    for job in ("b", "c"):
        placer.running[job] = placer.running["a"]
    placer.started("b", "two", ids[1])
    placer.started("c", "two", ids[1])
    assert jobs_on(placer)[first] == 1
    assert sum(jobs_on(placer)) == 3
    placer.ended("a")
    assert jobs_on(placer)[first] == 0
    assert sum(jobs_on(placer)) == 2


def test_more_ids_than_gpus_lose_no_job() -> None:
    placer = placed("a", "b", "c")
    for job in "abc":
        placer.started(job, "two", f"MIG-{job}")
    assert sum(jobs_on(placer)) == 3


def test_a_gpu_with_too_many_jobs_is_left_out(service: ServiceClient) -> None:
    """The service refuses more; other GPUs must still get jobs."""
    placer = placed(*map(str, range(17)))
    placer.service = service
    assert [gpu["id"] for n in placer.cluster(NODES[2:3])["nodes"] for gpu in n["gpus"]] == ["1"]
    answer = placer.ask("resnet18-cifar", 1000, NODES)
    assert answer is not None
    crowded = placed(*map(str, range(17)), node="one")
    assert crowded.cluster(NODES[:2]) == {"nodes": []}
    crowded.ended("0")
    assert len(crowded.cluster(NODES[:2])["nodes"][0]["gpus"][0]["tenants"]) == 16


@pytest.mark.parametrize(
    ("accelerator_type", "devices", "expected"),
    [
        ("A100", {}, "a100"),
        ("A100-40G", {}, "a100"),
        ("A100-80G", {}, "a100-80gb"),
        ("A100", {"A100": "a100:mig=3g.20gb"}, "a100:mig=3g"),
        ("TPU-V4", {}, None),
    ],
)
def test_accelerator_types(accelerator_type: str, devices: dict[str, str], expected: str | None) -> None:
    """The constants of `ray.util.accelerators`; GPUs may be slices."""
    node = {
        "NodeID": "n",
        "Alive": True,
        "Resources": {"GPU": 1.0, f"accelerator_type:{accelerator_type}": 1.0},
    }
    nodes = RayPlacer(devices=devices).cluster([node])["nodes"]
    assert [gpu["device"] for n in nodes for gpu in n["gpus"]] == ([expected] if expected else [])


def test_a_job_of_unknown_length_sends_no_iterations() -> None:
    assert Running("lstm-wikitext2", None, "two", "0", 0.0, 50.0).tenant(25.0) == {"job": "lstm-wikitext2"}
    assert Running("lstm-wikitext2", 100.0, "two", "0", 0.0, 50.0).tenant(25.0)["iterations_left"] == 50


def test_responses(service: ServiceClient) -> None:
    answer = RayPlacer(service).ask("resnet18-cifar", 1000, NODES)
    assert answer is not None
    assert answer["ranked"][0]["node"] == "one"
    unknown = RayPlacer(service).ask("resnet18-cifar", None, NODES)
    assert unknown is not None
    assert unknown["iterations"] == 36000
    assert RayPlacer(service).ask("no-such-model", 1000, NODES) is None
    assert RayPlacer(away()).ask("resnet18-cifar", 1000, NODES) is None
    assert RayPlacer(service).ask("resnet18-cifar", 1000, NODES[:1]) is None


def _affinity(node_id: str, soft: bool, _spill_on_unavailable: bool = False) -> SimpleNamespace:
    return SimpleNamespace(node_id=node_id, soft=soft, spills=_spill_on_unavailable)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for the package."""
    strategies = ModuleType("ray.util.scheduling_strategies")
    strategies.NodeAffinitySchedulingStrategy = _affinity  # type: ignore[attr-defined]
    for name, module in (("ray", ModuleType("ray")), ("ray.util.scheduling_strategies", strategies)):
        monkeypatch.setitem(sys.modules, name, module)


def test_a_job_that_fits_on_no_gpu_is_left_to_ray(
    service: ServiceClient, ray: None, caplog: pytest.LogCaptureFixture
) -> None:
    placer = RayPlacer(service)
    assert placer.place("7", "resnet18-cifar:batch_size=100000", 1000, NODES) is None
    assert "job 7: " in caplog.text
    assert "does not fit on any GPU" in caplog.text
    assert placer.running == {}


def test_a_job_does_not_wait_for_a_node_that_others_use(service: ServiceClient, ray: None) -> None:
    """The placer does not see them, and Ray would wait for them for ever."""
    strategy = RayPlacer(service).place("7", "resnet18-cifar", 1000, NODES)
    assert (strategy.node_id, strategy.soft, strategy.spills) == ("one", True, True)


def test_a_job_that_is_placed_again_is_not_its_own_neighbour(
    service: ServiceClient, ray: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    placer = RayPlacer(service)
    assert placer.place("7", "resnet18-cifar", 1000, NODES).node_id == "one"
    assert placer.running["7"].iterations == 1000
    placer.place("7", "resnet18-cifar", None, NODES)
    assert placer.running["7"].iterations is None, "what the answer assumed is not counted down"
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(RayPlacer, "ask", lambda self, *_: asked.append(self.cluster(NODES)))
    assert placer.place("7", "resnet18-cifar", 1000, NODES) is None
    assert not any(gpu["tenants"] for node in asked[0]["nodes"] for gpu in node["gpus"])


def test_the_stored_cluster(service: ServiceClient, ray: None) -> None:
    placer = RayPlacer(service)
    for job_id in ("train-7", "train-8"):
        placer.place(job_id, "resnet18-cifar", 100, nodes=NODES[:2])
        placer.started(job_id, "one", 0)
    assert placer.upload(NODES[:2])
    where = httpx.get(f"{service.url}/v1/cluster/tenants", params={"job_id": "train-8"}, trust_env=False)
    (tenant,) = where.json()["tenants"]
    assert (tenant["node"], tenant["gpu"], tenant["member"]) == ("one", "0", 1)
    assert tenant["of"] == {"device": "v100", "jobs": ["resnet18-cifar"] * 2, "sharing": "time-slice"}
    placer.ended("train-7")
    placer.place("train-9", "resnet18-cifar", 100, nodes=NODES[:2])  # waits for a GPU share, say
    assert placer.running["train-9"].node == "one"
    assert placer.upload(NODES[:2])
    answer = service.cluster()
    assert answer is not None
    assert len(answer["cluster"]["nodes"][0]["gpus"][0]["tenants"]) == 1
