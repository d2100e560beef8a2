"""The examples run as described in their docstrings."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.commands import printed, run

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["slowdown_limit", "fair_share"])
def test_command_of_the_docstring(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    text = (ROOT / "examples" / f"{name}.py").read_text()
    lines = iter(text.replace("\\\\\n", "").splitlines())
    command = next(line for line in lines if line.strip().startswith("cotenant "))
    words = shlex.split(command.replace("jobs=60", "jobs=12"))[1:]
    out = printed(capsys, *words, "--json")
    body = json.loads(out)
    results = body.get("policies", [body])
    assert all(result["jobs"] == 12 for result in results)
    assert len(text.splitlines()) <= 30


def test_gangs_and_infeasible_jobs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    words = (
        "simulate --trace synthetic:rate=30,jobs=12,gangs=1 --cluster small-mixed --skip-infeasible --json"
    )
    code, out, err = run(capsys, *words.split(), "--policy", "examples.slowdown_limit:POLICY")
    assert code == 0
    body = json.loads(out)
    assert body["jobs"] + len(body["skipped"]) == 12
    assert body["jobs"] > 0
    assert "that can never run" in err
