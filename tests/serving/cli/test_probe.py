from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import printed, refused, run
from tests.serving.cli.checkpoint import folder

__all__ = ["folder"]


def probe(folder: Path, count: int) -> tuple[object, ...]:
    return "probe", "--model", folder / "model", "--device", "v100", "--count", str(count)


def test_probes_lower_the_expected_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = (*probe(folder, 2), "--job", "alpha:batch_size=32")
    running = ("--running", "beta:batch_size=32", "--running", "gamma:batch_size=16")
    out = printed(capsys, *ask, *running, "--json")
    plan = json.loads(out)
    errors = [plan["error_ratio"], *(probe["error_ratio"] for probe in plan["probes"])]
    assert len(errors) == 3
    assert errors == sorted(errors, reverse=True)
    assert "expected error" in printed(capsys, *ask, *running)


def test_alone_is_a_candidate_and_too_few_are_reported(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = (*probe(folder, 3), "--running", "beta:batch_size=32")
    for job, there in (("alpha:batch_size=32", 2), ("alpha:batch_size=32,step_time_s=0.03", 1)):
        out = printed(capsys, *ask, "--job", job)
        assert ("(alone)" in out) == (there == 2)
        only = "is only one candidate" if there == 1 else "are only 2 candidates"
        assert f"3 probes were asked for, but there {only}" in out
        plan = json.loads(run(capsys, *ask, "--job", job, "--json")[1])
        assert len(plan["probes"]) == there
        assert ([job] in [probe["jobs"] for probe in plan["probes"]]) == (there == 2)
        assert len(plan["reasons"]) == 1


def test_an_unknown_device_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = ("--job", "alpha", "--running", "beta")
    assert "abacus" in refused(capsys, "probe", "--model", folder / "model", "--device", "abacus", *jobs)


def test_slices_of_a_card_without_mig_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ("probe", "--model", folder / "model", "--device", "v100", "--job", "alpha:batch_size=32")
    err = refused(capsys, *ask, "--running", "beta:batch_size=32", "--sharing", "mig")
    assert "v100 cannot be partitioned into MIG slices" in err


def test_what_was_never_measured_is_stated(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ("probe", "--model", folder / "model", "--device", "a100", "--job", "alpha", "--running", "beta")
    reason = "co-location was never measured on this GPU type (a100)"
    assert reason in json.loads(run(capsys, *ask, "--json")[1])["never_measured"]
    assert reason in run(capsys, *ask)[1]


def test_one_job_at_a_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    err = refused(capsys, *probe(folder, 1), "--job", "alpha", "--job", "beta")
    assert "--job is given 2 times" in err
