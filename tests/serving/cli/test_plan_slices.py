"""`cotenant plan slices` as typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import printed, refused, run
from tests.serving.cli.checkpoint import folder

__all__ = ["folder"]


def test_a_fleet_names_the_jobs_that_wait(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [word for number in range(12) for word in ("--job", f"alpha:batch_size={32 + number // 6}")]
    code, out, _ = run(
        capsys, "plan", "slices", "--model", folder / "model", "--device", "v100", "--gpus", "2",
        "--sharing", "none", *jobs,
    )  # fmt: skip
    assert code == 1
    assert "2 of 12 jobs placed" in out
    waits = [line.removeprefix("waits: ") for line in out.splitlines() if line.startswith("waits: ")]
    assert sum(int(line.partition("(")[2].partition(" ")[0] or 1) for line in waits) == 10
    assert len(waits) == 2


def test_a_fleet_names_the_jobs_of_each_card(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ("plan", "slices", "--model", folder / "model", "--device", "v100", "--gpus", "2")
    jobs = ("--job", "alpha:batch_size=32", "--job", "beta:batch_size=32")
    out = printed(capsys, *ask, *jobs)
    assert all(job in out for job in ("alpha:batch_size=32", "beta:batch_size=32"))
    out = printed(capsys, *ask, *jobs, "--json")
    assert json.loads(out)["never_measured"] == []


def test_steps_have_intervals_and_what_was_never_measured_is_stated(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = ("--job", "alpha", "--job", "beta")
    ask = ("plan", "slices", "--model", folder / "model", "--device", "a100", *jobs)
    plan = json.loads(run(capsys, *ask, "--json")[1])
    steps = [job for part in plan["slices"] for job in part["jobs"]]
    assert len(steps) == 2
    for job in steps:
        lower, upper = job["step_time_interval_s"]
        assert lower < job["step_time_s"] < upper
    out = run(capsys, *ask)[1]
    if any(len(part["jobs"]) > 1 for part in plan["slices"]):
        assert any("co-location was never measured on this GPU type" in r for r in plan["never_measured"])
    assert all(" ".join(reason.split()) in " ".join(out.split()) for reason in plan["never_measured"])


@pytest.mark.parametrize("sharing", ["none,mps", "mps,none", "mig"])
def test_sharing_is_none_or_modes(sharing: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ("plan", "slices", "--model", folder / "model", "--device", "v100", "--job", "alpha")
    err = refused(capsys, *ask, "--sharing", sharing)
    assert "expected time-slice and mps, or none, got " + sharing.replace(",", ", ") in " ".join(err.split())
