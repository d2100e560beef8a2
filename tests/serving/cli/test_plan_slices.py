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


def test_a_plan_is_corrected_by_observations(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """On the card and on its slices, and jobs keep their names."""
    seen, store = tmp_path / "seen.csv", tmp_path / "store.json"
    profiles = ("1g", "1g.10gb", "2g", "3g", "4g")
    on_slice = {f"a100:mig={profile}": 1.0 - 0.1 * k for k, profile in enumerate(profiles)}
    rows = ["a100,time-slice,alpha,alpha,0.5", *(f"{d},mig,beta,beta,{s}" for d, s in on_slice.items())]
    seen.write_text("\n".join(["device,sharing,jobs,job,step_time_s", *rows]))
    plan_slices = ("plan", "slices", "--model", folder / "model", "--device", "a100", "--sharing", "none")
    printed(capsys, "feedback", seen, "--store", store, "--model", folder / "model")
    feedback = ("--feedback", store, "--json")
    plan = json.loads(printed(capsys, *plan_slices, "--job", "alpha", "--job", "beta", *feedback))
    jobs = {job["job"]: (part["device"], job) for part in plan["slices"] for job in part["jobs"]}
    device, beta = jobs["beta"]
    assert beta["step_time_s"] == pytest.approx(on_slice[device], rel=0.01)
    lower, upper = beta["step_time_interval_s"]
    assert beta["step_time_s"] / 1.1 < lower < upper < 1.1 * beta["step_time_s"]
    # As if the SPEC stated it.
    alpha = jobs["alpha"][1]
    spec = f"alpha:step_time_s={alpha['step_time_s'] * alpha['speed_ratio']}"
    stated = json.loads(printed(capsys, *plan_slices, "--job", spec, "--job", "beta", *feedback))
    same = next(job for part in stated["slices"] for job in part["jobs"] if job["job"] != "beta")
    assert same["step_time_s"] == pytest.approx(alpha["step_time_s"], rel=1e-6)
    fleet = printed(capsys, *plan_slices, "--job", "alpha", "--job", "beta", "--gpus", "2", *feedback)
    cards = json.loads(fleet)["cards"]
    assert {j["job"] for c in cards for part in c["slices"] for j in part["jobs"]} == {"alpha", "beta"}


@pytest.mark.parametrize("sharing", ["none,mps", "mps,none", "mig"])
def test_sharing_is_none_or_modes(sharing: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ("plan", "slices", "--model", folder / "model", "--device", "v100", "--job", "alpha")
    err = refused(capsys, *ask, "--sharing", sharing)
    assert "expected time-slice and mps, or none, got " + sharing.replace(",", ", ") in " ".join(err.split())
