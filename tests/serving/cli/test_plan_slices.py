"""`cotenant plan slices` for several cards: the jobs that wait are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serving.cli.checkpoint import folder, run

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
