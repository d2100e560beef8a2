"""Which jobs `deploy/slurm/job_submit.lua` holds."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

lupa = pytest.importorskip("lupa", reason="lupa, which runs Lua, is not installed")

PLUGIN = Path(__file__).parents[3] / "deploy" / "slurm" / "job_submit.lua"
NO_VAL = 4294967294
SHARD = {
    "comment": "cotenant:resnet18-cifar",
    "tres_per_node": "gres/shard:1",
    "script": "#!/bin/sh\n",
    "begin_time": 0,
    "priority": NO_VAL,
    "min_nodes": NO_VAL,
    "het_job_offset": NO_VAL,
}


def submitted(**changes: Any) -> Any:
    """A job after submission, as Slurm's Lua sees it; a change to None unsets a field."""
    lua = lupa.LuaRuntime()
    lua.execute(f"slurm = {{SUCCESS = 0, NO_VAL = {NO_VAL}, log_info = string.format}}")
    lua.execute(PLUGIN.read_text())
    job = lua.table_from({key: value for key, value in (SHARD | changes).items() if value is not None})
    assert lua.globals().slurm_job_submit(job, None, 0) == 0
    return job


@pytest.mark.parametrize(
    "asked",
    [
        "gres/shard:1",
        "gres:shard:v100:2",
        "gres/gpu",
        "gres:gpu:1",
        "gres/gpu=1",
        "gres/gpu:v100",
        "gres/gpu:a100_3g.20gb:1",
        "gres/gpu:3g.20gb",
        "gres/gpu:v100=1",
        "gres/nvme:2,gres/gpu:1",
        "gpu:1",
    ],
)
def test_shards_and_one_gpu_are_held(asked: str) -> None:
    job = submitted(tres_per_node=asked)
    assert job.admin_comment == "cotenant:held"
    assert 15 <= job.begin_time - time.time() <= 21


@pytest.mark.parametrize(
    "changes",
    [
        *(
            {"tres_per_node": asked}
            for asked in (
                "gres/gpu:4", "gres/gpu=2", "gres/gpu:v100:2", "gres/gpu:v100=11", "gres/gpu:1K", "gres/gpu:a:1,gres/gpu:b:1",
                "gres/gpumem:1", "gres/nogpu:1", "gres/shards:1", "gres/nvme:1", "", None,
            )
        ),
        {"tres_per_node": None, "tres_per_job": "gres/gpu:1"},
        {"min_nodes": 4},
        {"script": None},
        {"script": ""},
        {"admin_comment": "chargeback=X"},
        {"comment": "cotenants"},
        {"comment": None},
        {"array_inx": "0-3"},
        {"het_job_offset": 0},
        {"het_job_offset": 1},
        {"priority": 0},
        {"begin_time": int(time.time()) + 3600},
    ],
)  # fmt: skip
def test_other_jobs_are_not_touched(changes: dict[str, Any]) -> None:
    job = submitted(**changes)
    assert job.admin_comment == changes.get("admin_comment")
    assert job.begin_time == changes.get("begin_time", 0)


@pytest.mark.parametrize(
    "changes", [{"min_nodes": 1}, {"min_nodes": None}, {"admin_comment": ""}, {"het_job_offset": None}]
)
def test_one_node_and_no_admin_comment_are_the_usual_case(changes: dict[str, Any]) -> None:
    assert submitted(**changes).admin_comment == "cotenant:held"


@pytest.mark.parametrize("field", ["tres_per_job", "tres_per_task"])
def test_shards_may_be_requested_per_job_or_task(field: str) -> None:
    assert submitted(tres_per_node=None, **{field: "gres/shard:2"}).admin_comment == "cotenant:held"
