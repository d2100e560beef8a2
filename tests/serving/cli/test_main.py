"""What commands answer to files, code and addresses that cannot be used (one line, exit code 2), and to --help."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.cli.lazy import COMMANDS
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


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert not end.value.code
    out = capsys.readouterr().out
    assert "Usage" in out
    assert "--install-completion" not in out  # it would be that of a program called like the command
