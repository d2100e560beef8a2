"""What the Slurm controller decides, with a running service and without."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from profiling.errors import InputError
from serving.app import create_app
from serving.config import ServiceConfig
from serving.integrations.ask import ServiceClient
from serving.integrations.slurm import SlurmConfig, asked_later, decide, stale_pin, step
from serving.integrations.slurm_state import HELD, Job
from tests.serving.integrations.test_slurm_state import recorded
from tests.serving.live import serve
from tests.serving.table import TableSource

CONFIG = SlurmConfig()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceClient]:
    store = tmp_path_factory.mktemp("service") / "store.db"
    with serve(create_app(ServiceConfig(database_url=f"sqlite:///{store}"), TableSource())) as port:
        yield ServiceClient(f"http://127.0.0.1:{port}")


def away() -> ServiceClient:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return ServiceClient(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=1)


def held(comment: str = "cotenant:resnet18-cifar:batch_size=64,iterations=1000") -> Job:
    jobs, _ = recorded()
    waiting = next(j for j in jobs if j.state == "PENDING")
    return replace(
        waiting, comment=comment, admin_comment=HELD, pinned=False, constrained=False, submitted_s=1000.0
    )


class Recorded:
    """Slurm as it was recorded; keeps what is changed."""

    def __init__(self, job: Job) -> None:
        self.job, self.changed = job, []  # type: tuple[Job, list[Any]]

    def jobs(self) -> list[Job]:
        return [self.job]

    def nodes(self) -> list[Mapping[str, Any]]:
        return list(recorded()[1])

    def update(self, job: int, changes: Mapping[str, str]) -> None:
        self.changed.append((job, dict(changes)))


def test_a_held_job_gets_a_node_and_goes(service: ServiceClient) -> None:
    jobs, nodes = recorded()
    changes = decide(held(), jobs, nodes, service, CONFIG, 1001.0)
    assert changes["StartTime"] == "now"
    assert changes["ReqNodeList"] in ("node-a", "node-b")
    assert changes["AdminComment"].startswith(f"cotenant:placed node={changes['ReqNodeList']} gpu=")


def test_without_the_service_it_goes_untouched() -> None:
    jobs, nodes = recorded()
    assert decide(held(), jobs, nodes, away(), CONFIG, 1001.0) == {
        "StartTime": "now", "AdminComment": "cotenant:left no answer"
    }  # fmt: skip


@pytest.mark.parametrize(
    "comment", ["cotenant:no-such-model", "cotenant:a:what=1", "cotenant:a,iterations=-1"]
)
def test_errors_leave_it_untouched(service: ServiceClient, comment: str) -> None:
    _, nodes = recorded()
    changes = decide(held(comment), [], nodes, service, CONFIG, 1001.0)
    assert changes["StartTime"] == "now"
    assert "ReqNodeList" not in changes


def test_own_nodes_and_no_nodes_are_respected(service: ServiceClient) -> None:
    _, nodes = recorded()
    assert "ReqNodeList" not in decide(replace(held(), constrained=True), [], nodes, service, CONFIG, 1.0)
    assert "ReqNodeList" not in decide(held(), [], [], service, CONFIG, 1.0)


def test_waiting_ends(service: ServiceClient) -> None:
    """Told to wait, it waits a while and is asked about again; after the longest time it takes what there is."""
    job = held()
    later = replace(job, admin_comment=f"{HELD} ask_s=1060")
    assert asked_later(later, 1059)
    assert not asked_later(later, 1061)
    assert not asked_later(job, 1061)


def test_a_pin_ends() -> None:
    job = replace(
        held(), pinned=True, admin_comment="cotenant:placed node=node-a gpu=0 finish_s=5.0 at_s=1000"
    )
    assert not stale_pin(job, CONFIG, 1059)
    assert stale_pin(job, CONFIG, 1061)
    assert not stale_pin(replace(job, state="RUNNING"), CONFIG, 1061)
    slurm = Recorded(job)
    step(slurm, away(), CONFIG)  # type: ignore[arg-type]
    assert slurm.changed == [
        (job.id, {"ReqNodeList": "", "AdminComment": "cotenant:left node did not become free"})
    ]


def test_only_our_holds_are_touched(service: ServiceClient) -> None:
    for job in (replace(held(), admin_comment=""), replace(held(), state="RUNNING")):
        slurm = Recorded(job)
        assert step(slurm, service, CONFIG) == {}  # type: ignore[arg-type]
        assert slurm.changed == []
    slurm = Recorded(held())
    assert "ReqNodeList" in step(slurm, service, CONFIG)[held().id]  # type: ignore[arg-type]


def test_bad_settings() -> None:
    with pytest.raises(InputError):
        SlurmConfig(period_s=0)


def test_wait_is_bounded() -> None:
    """A service that answers `wait`: the hold moves on, and ends after the longest time."""

    class Waits(ServiceClient):
        def place(self, job: str, iterations: float | None, cluster: dict[str, Any]) -> dict[str, Any]:
            best = {"node": "node-a", "gpu": "0", "score": 1.0, "finish_s": 1.0}
            return {"decision": "wait", "ranked": [best], "wait_s": 500.0}

    nodes = recorded()[1]
    changes = decide(held(), [], nodes, Waits(), CONFIG, 1001.0)
    assert changes == {"StartTime": "now+60", "AdminComment": f"{HELD} ask_s=1060"}
    assert decide(held(), [], nodes, Waits(), CONFIG, 1601.0)["ReqNodeList"] == "node-a"
