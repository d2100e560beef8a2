"""Jobs that Slurm requeued, because they were preempted or their node failed, and jobs on hold."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from serving.integrations.ask import ServiceClient
from serving.integrations.slurm import SlurmBridge, just_sent
from serving.integrations.slurm_state import HELD, SlurmJob, iterations_left, read_comment
from tests.serving.integrations.test_slurm import CONFIG, Recorded, away, held


class Places(ServiceClient):
    """Places every job on the first GPU."""

    def place(self, job: str, iterations: float | None, cluster: dict[str, Any]) -> dict[str, Any]:
        node = cluster["nodes"][0]
        best = {"node": node["name"], "gpu": node["gpus"][0]["id"], "finish_s": 100.0}
        return {"decision": "place", "ranked": [best]}


@pytest.mark.parametrize(
    ("mark", "pinned"),
    [("cotenant:placed node=node-a gpu=0 finish_s=5.0 at_s=1000", True), ("cotenant:left no answer", False)],
)
def test_a_requeued_job_is_a_new_question(mark: str, pinned: bool) -> None:
    """It was preempted, say. Its mark and node are of its first start; those of its second are not asked about again."""
    job = replace(held(), pinned=pinned, constrained=pinned, admin_comment=mark, restarts=1)
    slurm = Recorded(job)
    bridge = SlurmBridge(slurm, Places(), CONFIG)  # type: ignore[arg-type]
    changes = bridge.step()[job.id]
    assert changes == {"StartTime": "now+20", "AdminComment": HELD} | ({"ReqNodeList": ""} if pinned else {})
    slurm.job = replace(job, pinned=False, constrained=False, admin_comment=HELD)
    changes = bridge.step()[job.id]
    assert changes["ReqNodeList"] == "node-a"
    assert changes["AdminComment"].endswith(" restarts=1")
    placed = replace(slurm.job, pinned=True, constrained=True, admin_comment=changes["AdminComment"])
    assert not placed.outdated
    assert just_sent(placed, CONFIG, time.time())
    slurm.job = placed
    assert bridge.step() == {}
    assert replace(placed, restarts=2).outdated


def test_a_requeued_job_without_an_answer_is_not_asked_about_every_second() -> None:
    slurm = Recorded(replace(held(), restarts=3))
    bridge = SlurmBridge(slurm, away(), CONFIG)  # type: ignore[arg-type]
    told = bridge.step()[slurm.job.id]["AdminComment"]
    assert told == "cotenant:left no answer restarts=3"
    assert bridge.ask_all
    slurm.job = replace(slurm.job, admin_comment=told)
    assert bridge.step() == {}


def test_a_job_on_hold_is_asked_about_when_it_is_released() -> None:
    slurm = Recorded(replace(held(), on_hold=True))
    bridge = SlurmBridge(slurm, Places(), CONFIG)  # type: ignore[arg-type]
    assert bridge.step() == {}
    slurm.job = held()
    assert "ReqNodeList" in bridge.step()[slurm.job.id]


def test_what_was_predicted_before_the_requeue_does_not_shorten_the_job() -> None:
    """Slurm placed it again while no controller ran: another GPU, from the start."""
    mark = "cotenant:placed node=node-a gpu=0 finish_s=100.0 at_s=1000"
    job = replace(held(), state="RUNNING", started_s=1000.0, admin_comment=mark)
    request = read_comment(job.comment)
    assert request is not None
    assert iterations_left(job, request, 1050.0) == 500
    assert iterations_left(replace(job, restarts=1), request, 1050.0) == 1000


def test_restarts_and_holds_of_every_version() -> None:
    raw = {"job_id": 7, "job_state": "PENDING", "restart_cnt": 2, "priority": 0}
    job = SlurmJob.read(raw)
    assert (job.restarts, job.on_hold) == (2, True)
    assert SlurmJob.read(raw | {"priority": {"set": True, "number": 0}}).on_hold
    for priority in (100, {"set": True, "number": 100}, {"set": False, "number": 0}, None):
        assert not SlurmJob.read(raw | {"priority": priority}).on_hold
