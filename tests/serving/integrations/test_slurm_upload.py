"""The service's stored cluster, kept in step with Slurm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.app import create_app
from serving.config import ServiceConfig
from serving.integrations.ask import ServiceClient
from serving.integrations.slurm import SlurmBridge, SlurmConfig
from serving.integrations.slurm_cluster import whole_cluster
from serving.integrations.slurm_state import SlurmJob
from serving.integrations.slurm_upload import RETRY_S, SlurmUpload
from tests.serving.integrations.test_slurm_state import DEVICES, recorded
from tests.serving.live import serve
from tests.serving.table import TableSource

COMMENT = "cotenant:resnet18-cifar:batch_size=64,iterations=1000"
TYPES = DEVICES | {"v100_0": "v100", "v100_1": "v100"}


class Recorded:
    """Slurm as recorded, with other jobs."""

    def __init__(self, *jobs: SlurmJob) -> None:
        self.running, self.asked = list(jobs), 0

    def jobs(self) -> list[SlurmJob]:
        return self.running

    def nodes(self) -> list[Mapping[str, Any]]:
        self.asked += 1
        return list(recorded()[1])

    def update(self, job: SlurmJob, changes: Mapping[str, str]) -> None:
        raise AssertionError("no job is held")


def running(number: int, gpu: int, kind: str = "shard", comment: str = COMMENT, **more: Any) -> SlurmJob:
    job = next(j for j in recorded()[0] if j.state == "RUNNING")
    holds = {"node-a": {gpu: (kind, 1)}}
    return replace(job, id=number, comment=comment, admin_comment="", holds=holds, **more)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceClient]:
    config = ServiceConfig(database_url=f"sqlite:///{tmp_path}/store.db", log_level="error")
    with serve(create_app(config, TableSource())) as port:
        yield ServiceClient(f"http://127.0.0.1:{port}")


def stored(service: ServiceClient) -> dict[str, list[str]]:
    """`job_id`s by node and GPU."""
    answer = service.cluster()
    assert answer is not None
    return {
        f"{node['name']}/{gpu['id']}": [tenant["job_id"] for tenant in gpu["tenants"]]
        for node in answer["cluster"]["nodes"]
        for gpu in node["gpus"]
    }


def whole(*jobs: SlurmJob, knows: bool = True) -> dict[str, list[str]]:
    body = whole_cluster(list(jobs), recorded()[1], TYPES, lambda _: knows, 0.0)
    return {
        f"{node['name']}/{gpu['id']}": [tenant["job_id"] for tenant in gpu["tenants"]]
        for node in body["nodes"]
        for gpu in node["gpus"]
    }


EMPTY: dict[str, list[str]] = {"node-a/0": [], "node-a/1": [], "node-b/0": [], "node-b/1": []}
WITHOUT = {gpu: jobs for gpu, jobs in EMPTY.items() if gpu != "node-a/1"}


def test_jobs_with_shards_and_with_a_whole_gpu_are_tenants() -> None:
    assert whole() == EMPTY
    jobs = running(7, 0), running(8, 0), running(9, 1, "gpu")
    assert whole(*jobs) == EMPTY | {"node-a/0": ["7", "8"], "node-a/1": ["9"]}


@pytest.mark.parametrize(
    "other",
    [
        running(8, 1, comment="notes"),
        running(8, 1, comment="cotenant:a:what=1"),
        running(8, 1, kind="mps"),
        running(8, 1, state="SUSPENDED"),
    ],
)
def test_a_gpu_with_an_unknown_job_is_left_out(other: SlurmJob) -> None:
    assert whole(running(7, 1), other) == WITHOUT


def test_a_gpu_with_an_unknown_model_is_left_out() -> None:
    assert whole(running(7, 1), knows=False) == WITHOUT


def test_it_is_uploaded_when_jobs_change_and_now_and_then(service: ServiceClient) -> None:
    slurm, upload = Recorded(running(7, 0)), SlurmUpload(service, TYPES, 2.0)
    bridge = SlurmBridge(slurm, service, SlurmConfig(devices=TYPES), upload=upload)  # type: ignore[arg-type]
    for _ in range(3):
        assert bridge.step() == {}
    assert (slurm.asked, stored(service)) == (1, EMPTY | {"node-a/0": ["7"]})
    slurm.running.append(running(8, 0))
    bridge.step()
    assert (slurm.asked, stored(service)) == (2, EMPTY | {"node-a/0": ["7", "8"]})
    upload.look(slurm.nodes, slurm.running, upload._due_s)
    assert slurm.asked == 3
    where = httpx.get(f"{service.url}/v1/cluster/tenants", params={"job_id": "8"}, trust_env=False).json()
    assert [(tenant["gpu"], tenant["member"]) for tenant in where["tenants"]] == [("0", 1)]


def test_it_is_uploaded_again_soon_if_the_service_was_down(service: ServiceClient) -> None:
    slurm, upload = Recorded(), SlurmUpload(ServiceClient("http://127.0.0.1:1"), TYPES, 2.0)
    upload.look(slurm.nodes, [running(7, 0)], 0.0)
    again = SlurmUpload(service, TYPES, 2.0)
    upload._client, upload._upload = again._client, again._upload
    upload.look(slurm.nodes, [running(7, 0)], 1.0)
    assert (slurm.asked, stored(service)) == (1, {})
    upload.look(slurm.nodes, [running(7, 0)], RETRY_S)
    assert (slurm.asked, stored(service)) == (2, EMPTY | {"node-a/0": ["7"]})


def test_jobs_that_the_service_would_refuse_leave_the_rest(service: ServiceClient) -> None:
    unknown = running(7, 1, comment="cotenant:no-such-model"), running(8, 0)
    SlurmUpload(service, TYPES, 2.0).look(Recorded().nodes, list(unknown), 0.0)
    assert stored(service) == WITHOUT | {"node-a/0": ["8"]}
    unknown = running(7, 1, comment=f"cotenant:graph:{'0' * 64}"), running(8, 0)
    SlurmUpload(service, TYPES, 2.0).look(Recorded().nodes, list(unknown), 0.0)
    assert stored(service) == WITHOUT | {"node-a/0": ["8"]}
