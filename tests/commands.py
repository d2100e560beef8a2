"""Runs `cotenant` commands in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as done:
        main([str(a) for a in arguments])
    out = capsys.readouterr()
    return int(done.value.code or 0), out.out, out.err


def printed(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> str:
    """Stdout of a command that ends with `code`."""
    ended, out, err = run(capsys, *arguments)
    assert ended == code, err
    return out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 2) -> str:
    """Stderr of a command that ends with `code`."""
    ended, _, err = run(capsys, *arguments)
    assert ended == code, err
    return err
