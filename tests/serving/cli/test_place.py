"""`cotenant place` as typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import refused, run
from tests.serving.cli.checkpoint import folder

__all__ = ["folder"]

TENANT = '{job: "alpha:batch_size=32", iterations_left: 1000}'


def place(folder: Path, device: str, *words: str) -> tuple[object, ...]:
    cluster = folder / f"{device}.yaml"
    cluster.write_text(f"nodes: [{{name: a, gpus: [{{device: {device}, tenants: [{TENANT}]}}]}}]\n")
    return ("place", "--model", folder / "model", "--cluster", cluster, "--job", "beta:batch_size=32", *words)


def test_without_waiting_no_gpu_is_a_negative_answer(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, expected in ((("--no-wait",), 1), ((), 0)):
        code, out, _ = run(capsys, *place(folder, "v100", "--max-slowdown", "1.0001", *words))
        assert code == expected
        assert out.startswith("wait")
        assert "its slowdown budget (1 unless it has its own; the worst-off member is slowed" in " ".join(
            out.split()
        )


def test_what_was_never_measured_is_stated(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reason = "co-location was never measured on this GPU type (a100)"
    ask = place(folder, "a100", "--max-slowdown", "9", "--no-wait")
    assert reason in json.loads(run(capsys, *ask, "--json")[1])["never_measured"]
    assert reason in " ".join(run(capsys, *ask)[1].split())
    known = json.loads(run(capsys, *place(folder, "v100", "--max-slowdown", "9", "--no-wait"), "--json")[1])
    assert not any("co-location" in reason for reason in known["never_measured"])


def test_one_job_at_a_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--job is given 2 times" in refused(capsys, *place(folder, "v100", "--job", "alpha"))


def test_all_gpus_of_a_gang_are_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = folder / "gang.yaml"
    cluster.write_text("nodes: [{name: a, count: 2, gpus: [{device: v100, count: 2}]}]\n")
    ask = (
        "place",
        "--model",
        folder / "model",
        "--cluster",
        cluster,
        "--job",
        "beta:batch_size=32",
        "--gpus",
    )
    for gpus, start, rows in (
        ("2", "place on a-0/0, a-0/1  beta", ["a-0 0, 1"]),
        ("4", "place on a-0/0, a-0/1, a-1/0, a-1/1  beta", ["a-0 0, 1", "a-1 0, 1"]),
    ):
        lines = [" ".join(line.split()) for line in run(capsys, *ask, gpus)[1].splitlines()]
        assert lines[0].startswith(" ".join(start.split()))
        assert all(any(line.startswith(row) for line in lines[3:]) for row in rows)
