"""What every command answers to files and code of the caller that cannot be used: one line, exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.cli.main import main


@pytest.mark.parametrize(
    "arguments",
    [
        ["capture", "ppo-lunarlander", "-o", "FOLDER"],
        ["capture", "ppo-lunarlander", "-o", "FILE/graph.json"],
        ["capture", "json:loads"],
        ["campaign", "run", "FOLDER", "-o", "FOLDER"],
        ["plan", "ring", "FOLDER"],
        ["place", "--cluster", "FOLDER", "--job", "ppo-lunarlander"],
        ["door", "slurm", "--device", "tesla=nothing"],
        ["door", "slurm", "--service", "nothing"],
        ["serve", "--host", "192.0.2.1", "--database", "sqlite:///FOLDER/x.db"],
    ],
)
def test_what_cannot_be_used(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    names = {"FOLDER": str(tmp_path), "FILE": str(tmp_path / "file")}
    words = [next((a.replace(k, v) for k, v in names.items() if k in a), a) for a in arguments]
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("cotenant: ")
    assert err.count("\n") == 1
