from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from profiling.command_line import CLOSED_PIPE, errors_as_lines
from profiling.errors import ConflictError, InputError

_ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("no", expected="yes", got="no"), 2, "me: no: expected yes, got no.\n"),
        (ConflictError("taken"), ConflictError.exit_code, "me: taken.\n"),
        (
            FileNotFoundError(errno.ENOENT, "No such file", "x"),
            2,
            "me: cannot read or write x: no such file; choose another path.\n",
        ),
        (
            OSError(errno.EFBIG, "File too large", "x"),
            2,
            "me: cannot write x: file too large; choose another path.\n",
        ),
        (PermissionError(errno.EPERM, "Not ours", "x", None, "y"), 2, "me: cannot read or write y: not ours"),
        (ModuleNotFoundError(name="fcntl"), 2, f"me: this command needs Linux or macOS: got {sys.platform}."),
    ],
)
def test_user_errors_are_one_line(
    error: Exception, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end, errors_as_lines("me"):
        raise error
    assert end.value.code == code
    err = capsys.readouterr().err
    assert err.startswith(line)
    assert err.count("\n") == 1


def test_bugs_raise() -> None:
    with pytest.raises(OSError, match="Bad file"), errors_as_lines("me"):
        raise OSError(errno.EBADF, "Bad file descriptor")
    with pytest.raises(ModuleNotFoundError), errors_as_lines("me"):
        raise ModuleNotFoundError(name="torch")
    with pytest.raises(SystemExit) as end, errors_as_lines("me"):
        raise SystemExit(1)
    assert end.value.code == 1


def test_debug_shows_the_traceback_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), errors_as_lines("me", debug=True):
        raise InputError("no")
    assert capsys.readouterr().err.startswith("Traceback")


@pytest.mark.parametrize(
    "command",
    [
        ["-m", "benchmarks", "--list"],
        ["-m", "serving.cli.main", "data", "sources"],  # rich
        ["-m", "serving.cli.main", "data", "template", "--describe"],  # typer
        ["-c", "from profiling.command_line import *\nwith errors_as_lines('me'): print(1)"],
        [
            "-c",
            "from profiling.command_line import *\nwith errors_as_lines('me'): print(1); raise SystemExit",
        ],
        ["-m", "profiling", "--help"],
    ],
)
def test_a_closed_pipe_is_not_an_error(command: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        done = subprocess.run(
            [sys.executable, *command], cwd=_ROOT, stdout=closed, stderr=subprocess.PIPE, text=True
        )
    assert done.stderr == ""
    # Neither 1, "the answer is no", nor 120, with which the interpreter ends if it cannot flush.
    assert done.returncode == CLOSED_PIPE


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_to_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "serving.cli.main", "data", "sources", "--json"],
            cwd=_ROOT, stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert done.stderr == "cotenant: the output cannot be written: got No space left on device.\n"
    assert done.returncode == 2


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
@pytest.mark.parametrize("command", ["--help", "devices list", "devices list --json"])
def test_stdout_closed_before_the_start_is_not_an_error(command: str) -> None:
    done = subprocess.run(
        f'"{sys.executable}" -m serving.cli.main {command} >&-',
        shell=True, cwd=_ROOT, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
