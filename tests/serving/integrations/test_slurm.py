"""Decisions of the Slurm controller, with and without a running service."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from profiling.errors import InputError
from serving.app import create_app
from serving.config import ServiceConfig
from serving.integrations.ask import ServiceClient
from serving.integrations.slurm import Slurm, SlurmBridge, SlurmConfig, asked_later, decide, run, stale_pin
from serving.integrations.slurm_state import HELD, SlurmJob
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


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "http://", "http://[::1", "ftp://a"])
def test_invalid_addresses(url: str) -> None:
    with pytest.raises(InputError, match="the address of the service is invalid"):
        ServiceClient(url)


def test_an_address_may_end_with_a_slash(service: ServiceClient) -> None:
    cluster = {"nodes": [{"name": "a", "gpus": [{"device": "v100"}]}]}
    answer = ServiceClient(f"{service.url}/").place("resnet18-cifar", 10, cluster)
    assert answer is not None
    assert answer["decision"] == "place"


def held(comment: str = "cotenant:resnet18-cifar:batch_size=64,iterations=1000") -> SlurmJob:
    jobs, _ = recorded()
    waiting = next(j for j in jobs if j.state == "PENDING")
    return replace(
        waiting, comment=comment, admin_comment=HELD, pinned=False, constrained=False, submitted_s=1000.0
    )


class Recorded:
    """Slurm as recorded; keeps the changes."""

    def __init__(self, job: SlurmJob) -> None:
        self.job, self.changed = job, []  # type: tuple[SlurmJob, list[Any]]

    def jobs(self) -> list[SlurmJob]:
        return [self.job]

    def nodes(self) -> list[Mapping[str, Any]]:
        return list(recorded()[1])

    def update(self, job: SlurmJob, changes: Mapping[str, str]) -> None:
        self.changed.append((job.id, dict(changes)))


def test_a_held_job_gets_a_node_and_is_released(service: ServiceClient) -> None:
    jobs, nodes = recorded()
    changes = decide(held(), jobs, nodes, service, CONFIG, 1001.0)
    assert changes["StartTime"] == "now"
    assert changes["ReqNodeList"] in ("node-a", "node-b")
    assert changes["AdminComment"].startswith(f"cotenant:placed node={changes['ReqNodeList']} gpu=")


@pytest.mark.parametrize("ran_s", [0.0, 10_000.0])
def test_the_end_of_jobs_of_unknown_length_is_not_waited_for(service: ServiceClient, ran_s: float) -> None:
    """However long they have run: they may as well go on for another hour."""
    jobs, nodes = recorded()
    placed = "cotenant:placed node=node-a gpu=0 finish_s=3600.0 iterations=36000 at_s=1000"
    running = next(j for j in jobs if j.state == "RUNNING")
    running = replace(running, admin_comment=placed, started_s=1000.0 - ran_s)
    tenants = [
        replace(running, id=k, comment=f"cotenant:{model}")
        for k, model in enumerate(("resnet18-cifar", "lstm-wikitext2"))
    ]
    one_gpu = nodes[0] | {"gres": "gpu:v100:1,shard:4"}
    changes = decide(held(), tenants, [one_gpu], service, CONFIG, 1001.0)
    assert changes["AdminComment"].startswith("cotenant:placed node=node-a gpu=0 ")


def test_on_a_node_with_several_types_the_type_is_named(service: ServiceClient) -> None:
    """Slices of one card: Slurm is told which one, unless the job requests one itself."""
    _, nodes = recorded()
    mixed = [nodes[0] | {"gres": "gpu:v100:1,gpu:k80:1,shard:8"}]
    for whole, name in ((False, "shard"), (True, "gpu")):
        job = replace(held(), whole=whole, gres=f"gres:nvme:2,gres:{name}:1", gpu_type="")
        changes = decide(job, [], mixed, service, CONFIG, 1001.0)
        kind = ("v100", "k80")[int(changes["AdminComment"].partition("gpu=")[2][0])]
        assert changes["TresPerNode"] == f"gres:nvme:2,gres:{name}:{kind}:1"
        own = decide(replace(job, gpu_type="k80"), [], mixed, service, CONFIG, 1001.0)
        assert " gpu=1 " in own["AdminComment"]
        assert "TresPerNode" not in own
    assert "TresPerNode" not in decide(replace(held(), gres=""), [], mixed, service, CONFIG, 1001.0)


REFUSED = subprocess.CalledProcessError(1, ("scontrol", "update"), stderr="Invalid GRES specification")


class Commands:
    """Stands for `scontrol update`; keeps the state of one job, and refuses what contains a word."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, refuses: str, error: subprocess.SubprocessError = REFUSED
    ) -> None:
        self.refuses, self.error = refuses, error
        self.job = {"TresPerNode": "gres:gpu:1", "AdminComment": HELD}
        monkeypatch.setattr("serving.integrations.slurm._run", self.run)

    def run(self, *command: str) -> str:
        assert command[:2] == ("scontrol", "update")
        if any(self.refuses in part for part in command):
            raise self.error
        self.job |= dict(part.split("=", 1) for part in command[3:])
        return ""


def test_a_type_that_slurm_refuses_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job keeps its request: without one it would start without a GPU."""
    slurm = Commands(monkeypatch, "gpu:k80")
    changes = {"StartTime": "now", "AdminComment": "cotenant:placed", "TresPerNode": "gres:gpu:k80:1"}
    Slurm().update(replace(held(), gres="gres:gpu:1"), changes)
    assert slurm.job == changes | {"TresPerNode": "gres:gpu:1"}


def test_a_job_of_which_every_change_is_refused_keeps_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Commands(monkeypatch, "ReqNodeList")
    changes = {"StartTime": "now", "ReqNodeList": "gone", "TresPerNode": "gres:gpu:k80:1"}
    with pytest.raises(subprocess.CalledProcessError):
        Slurm().update(replace(held(), gres="gres:gpu:1"), changes)
    assert slurm.job == {"TresPerNode": "gres:gpu:1", "AdminComment": HELD, "StartTime": "now+10"}


def test_a_request_lost_halfway_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller was killed, or Slurm stopped responding, between the two commands that set a type."""
    slurm = Commands(monkeypatch, "gpu:k80", subprocess.TimeoutExpired("scontrol", 30))
    with pytest.raises(subprocess.TimeoutExpired):
        Slurm().update(replace(held(), gres="gres:gpu:1"), {"TresPerNode": "gres:gpu:k80:1"})
    assert slurm.job["TresPerNode"] == ""
    raw = {
        "job_id": 7,
        "job_state": "PENDING",
        "tres_per_node": "",
        "admin_comment": slurm.job["AdminComment"],
    }
    job = SlurmJob.read(raw | {"comment": "cotenant:resnet18-cifar"})
    assert (job.gres, job.whole, job.cleared) == ("gres:gpu:1", True, True)
    found = Recorded(job)
    SlurmBridge(found, away(), CONFIG).step()  # type: ignore[arg-type]
    assert found.changed[0][1]["TresPerNode"] == "gres:gpu:1"


def test_a_refused_change_does_not_keep_other_jobs_waiting(service: ServiceClient) -> None:
    """The first job was cancelled after the queue was read, or Slurm will never accept the change."""

    class Refusing(Recorded):
        def jobs(self) -> list[SlurmJob]:
            return [replace(held(), id=20), replace(held(), id=21)]

        def update(self, job: SlurmJob, changes: Mapping[str, str]) -> None:
            if job.id == 20:
                raise REFUSED
            super().update(job, changes)

    slurm = Refusing(held())
    bridge = SlurmBridge(slurm, service, CONFIG)  # type: ignore[arg-type]
    assert list(bridge.step()) == [21]
    assert list(bridge.refused) == [20]


def test_after_each_missing_answer_the_queue_is_read_again() -> None:
    """Each may take seconds, in which the holds of other jobs expire and they start."""
    job = held()

    class Starting(Recorded):
        def jobs(self) -> list[SlurmJob]:
            return [replace(job, id=k) for k in range(20 + len(self.changed), 23)]

    slurm = Starting(job)
    bridge = SlurmBridge(slurm, away(), CONFIG)  # type: ignore[arg-type]
    assert [list(bridge.step()) for _ in range(3)] == [[20], [21], [22]]


@pytest.mark.parametrize(
    "best",
    [{"gpu": "0"}, {"node": "node-a", "gpu": "x", "finish_s": 1.0}, {"node": "node-a", "gpu": "0"}, None],
)
def test_malformed_answers_release_the_job_unchanged(monkeypatch: pytest.MonkeyPatch, best: Any) -> None:
    body = {"decision": "place", "ranked": [best]}
    monkeypatch.setattr(httpx.Client, "request", lambda *_, **__: httpx.Response(200, json=body))
    changes = decide(held(), [], recorded()[1], ServiceClient(), CONFIG, 1001.0)
    assert changes["StartTime"] == "now"
    assert "ReqNodeList" not in changes


def test_nodes_of_newer_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """From Slurm 23.02 on `sinfo --json` has groups of equal nodes instead of nodes."""
    told = {
        ("sinfo", "--json"): {"sinfo": []},
        ("scontrol", "show", "nodes", "--json"): {"nodes": [{"name": "a"}]},
    }
    monkeypatch.setattr("serving.integrations.slurm._run", lambda *command: json.dumps(told[command]))
    assert Slurm().nodes() == [{"name": "a"}]


def test_a_job_with_bytes_that_are_no_text_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").write_bytes(
        b'{"jobs": [{"job_id": 1, "comment": "\xfe"}, {"job_id": 2, "comment": "a"}]}'
    )
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/sh\ncat {tmp_path}/out\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert [job.comment for job in Slurm().jobs()] == ["\ufffd", "a"]


def test_without_the_service_the_job_is_released_unchanged() -> None:
    jobs, nodes = recorded()
    assert decide(held(), jobs, nodes, away(), CONFIG, 1001.0) == {
        "StartTime": "now", "AdminComment": "cotenant:left no answer"
    }  # fmt: skip


@pytest.mark.parametrize(
    "comment", ["cotenant:no-such-model", "cotenant:a:what=1", "cotenant:a,iterations=-1"]
)
def test_errors_release_the_job_unchanged(service: ServiceClient, comment: str) -> None:
    _, nodes = recorded()
    changes = decide(held(comment), [], nodes, service, CONFIG, 1001.0)
    assert changes["StartTime"] == "now"
    assert "ReqNodeList" not in changes


def test_a_wrong_model_name_is_a_comment_that_is_not_understood(
    service: ServiceClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = recorded()[1]
    marks = [
        decide(held(f"cotenant:{name}"), [], nodes, asked, CONFIG, 1001.0)["AdminComment"]
        for name in ("resnet18-cfar", "resnet18-cifar", "graph:abc")
        for asked in (service, away())
    ]
    assert marks[:2] == ["cotenant:left comment is not understood"] * 2
    assert marks[2].startswith("cotenant:placed")
    assert marks[3] == "cotenant:left no answer"
    assert marks[4:] == ["cotenant:left graph:abc is not registered", "cotenant:left no answer"]
    # A service that knows more names is still believed.
    answer = {"decision": "place", "ranked": [{"node": "node-a", "gpu": "0", "finish_s": 1.0}]}
    monkeypatch.setattr(httpx.Client, "request", lambda *_, **__: httpx.Response(200, json=answer))
    assert "ReqNodeList" in decide(held("cotenant:newer-net"), [], nodes, service, CONFIG, 1001.0)


def test_constrained_jobs_and_empty_clusters_are_left_to_slurm(service: ServiceClient) -> None:
    _, nodes = recorded()
    assert "ReqNodeList" not in decide(replace(held(), constrained=True), [], nodes, service, CONFIG, 1.0)
    assert "ReqNodeList" not in decide(held(), [], [], service, CONFIG, 1.0)


def test_waiting_ends(service: ServiceClient) -> None:
    """A job told to wait is considered again later, and after the maximum time takes what is available."""
    job = held()
    later = replace(job, admin_comment=f"{HELD} ask_s=1060")
    assert asked_later(later, 1059)
    assert not asked_later(later, 1061)
    assert not asked_later(job, 1061)


def test_a_pinned_node_list_expires() -> None:
    job = replace(
        held(), pinned=True, admin_comment="cotenant:placed node=node-a gpu=0 finish_s=5.0 at_s=1000"
    )
    assert not stale_pin(job, 1059)
    assert stale_pin(job, 1061)
    assert not stale_pin(replace(job, state="RUNNING"), 1061)
    slurm = Recorded(job)
    SlurmBridge(slurm, away(), CONFIG).step()  # type: ignore[arg-type]
    assert slurm.changed == [
        (job.id, {"ReqNodeList": "", "AdminComment": "cotenant:left node did not become free"})
    ]


def test_other_held_jobs_are_not_touched(service: ServiceClient) -> None:
    for job in (replace(held(), admin_comment=""), replace(held(), state="RUNNING")):
        slurm = Recorded(job)
        assert SlurmBridge(slurm, service, CONFIG).step() == {}  # type: ignore[arg-type]
        assert slurm.changed == []
    slurm = Recorded(held())
    assert "ReqNodeList" in SlurmBridge(slurm, service, CONFIG).step()[held().id]  # type: ignore[arg-type]


def test_bad_settings() -> None:
    with pytest.raises(InputError):
        SlurmConfig(period_s=0)


def test_wait_is_bounded() -> None:
    """If the service answers `wait`, the hold is extended, and ends after the maximum time."""

    class Waits(ServiceClient):
        def place(self, job: str, iterations: float | None, cluster: dict[str, Any]) -> dict[str, Any]:
            best = {"node": "node-a", "gpu": "0", "score": 1.0, "finish_s": 1.0}
            return {"decision": "wait", "ranked": [best], "wait_s": 500.0}

    nodes = recorded()[1]
    changes = decide(held(), [], nodes, Waits(), CONFIG, 1001.0)
    assert changes == {"StartTime": "now+70", "AdminComment": f"{HELD} ask_s=1061"}
    assert decide(held(), [], nodes, Waits(), CONFIG, 1601.0)["ReqNodeList"] == "node-a"


def test_full_gpus_are_waited_for(service: ServiceClient) -> None:
    jobs, nodes = recorded()
    full = [replace(j, holds={"node-a": {0: ("shard", 4)}}) for j in jobs if j.state == "RUNNING"]
    one = [nodes[0] | {"gres": "gpu:v100:1,shard:4"}]
    changes = decide(held(), full, one, service, CONFIG, 1001.0)
    assert changes == {"StartTime": "now+70", "AdminComment": f"{HELD} ask_s=1061"}
    assert decide(held(), full, one, service, CONFIG, 1601.0)["StartTime"] == "now"


def test_a_job_that_depends_on_another_is_placed_when_that_has_ended(service: ServiceClient) -> None:
    nodes = recorded()[1]
    job = replace(held(), dependent=True)
    changes = decide(job, [], nodes, service, CONFIG, 1001.0)
    assert changes == {"StartTime": "now+70", "AdminComment": f"{HELD} dependency ask_s=1061"}
    told = replace(job, admin_comment=changes["AdminComment"])
    assert asked_later(told, 1059)
    assert not asked_later(told, 1061)
    assert not asked_later(replace(told, dependent=False), 1002)
    assert "ReqNodeList" in decide(replace(told, dependent=False), [], nodes, service, CONFIG, 1002.0)
    stuck = decide(replace(job, dependent=False, never_starts=True), [], nodes, service, CONFIG, 1002.0)
    assert stuck == {"StartTime": "now", "AdminComment": "cotenant:left its dependency failed"}


def test_departures_and_placements_trigger_new_requests_for_waiting_jobs(service: ServiceClient) -> None:
    """Two held jobs wait beside one that ends: one is placed, and the other considered once it runs."""
    running = next(j for j in recorded()[0] if j.state == "RUNNING")
    later = replace(held(), admin_comment=f"{HELD} ask_s=9e9")
    queue = [running, replace(later, id=21), replace(later, id=20)]

    class Moving(Recorded):
        def jobs(self) -> list[SlurmJob]:
            return list(queue)

    slurm = Moving(later)
    bridge = SlurmBridge(slurm, service, CONFIG)  # type: ignore[arg-type]
    assert bridge.step() == {}
    queue[0] = replace(running, state="COMPLETING")  # it still has its GPU
    assert bridge.step() == {}
    queue.pop(0)
    placed = bridge.step()
    assert list(placed) == [20]
    queue[1] = replace(queue[1], admin_comment=placed[20]["AdminComment"], pinned=True)
    assert bridge.step() == {}
    queue[1] = replace(queue[1], state="RUNNING")
    assert list(bridge.step()) == [21]


def test_refusals_of_slurm_are_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[int] = []

    def refused(_: SlurmBridge) -> dict[int, dict[str, str]]:
        looks.append(1)
        if len(looks) == 4:
            raise KeyboardInterrupt
        if len(looks) == 3:
            return {}
        raise subprocess.CalledProcessError(1, ("squeue", "--json"), stderr="squeue: error:\nno controller\n")

    monkeypatch.setattr(SlurmBridge, "step", refused)
    with pytest.raises(KeyboardInterrupt), caplog.at_level("INFO", logger="cotenant.slurm"):
        run(away(), SlurmConfig(period_s=0.001))
    assert [record.getMessage() for record in caplog.records] == [
        "unexpected response from Slurm, retrying: squeue --json: squeue: error: no controller",
        "Slurm responds again",
    ]
