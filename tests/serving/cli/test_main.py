"""Responses of commands to unusable files, code and addresses (one line, exit code 2), and to --help."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from profiling.errors import InputError
from serving.cli.lazy import COMMANDS
from serving.cli.main import app
from tests.commands import printed, refused, run


@pytest.mark.parametrize(
    "arguments",
    [
        ["capture", "ppo-lunarlander", "-o", "FOLDER"],
        ["capture", "ppo-lunarlander", "-o", "FILE/graph.json"],
        ["capture", "json:loads"],
        ["campaign", "run", "FOLDER", "-o", "FOLDER"],
        ["plan", "ring", "FOLDER"],
        ["place", "--cluster", "FOLDER", "--job", "ppo-lunarlander"],
        ["predict", "--device", "nothing", "--job", "ppo-lunarlander"],
        ["matrix", "--device", "nothing"],
        ["controller", "slurm", "--device", "tesla=nothing"],
        ["controller", "slurm", "--service", "nothing"],
        ["serve", "--host", "192.0.2.1", "--database", "sqlite:///FOLDER/x.db"],
    ],
)
def test_unusable_input(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    names = {"FOLDER": str(tmp_path), "FILE": str(tmp_path / "file")}
    words = [next((a.replace(k, v) for k, v in names.items() if k in a), a) for a in arguments]
    err = refused(capsys, *words)
    assert err.startswith("cotenant: ")
    assert err.count("\n") == 1


def test_assumptions_of_a_capture_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "noted_factory.py").write_text(
        "import torch\n\nclass Net(torch.nn.Linear):\n    def forward(self, x):\n"
        "        y = super().forward(x)\n        return y + torch.special.bessel_j0(y)\n\n"
        "def make(batch_size=4):\n    return Net(8, 2), torch.randn(batch_size, 8)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    _, _, err = run(capsys, "predict", "--device", "v100", "--job", "noted_factory:make")
    note = "note: noted_factory:make: operators without a canonical kind, counted by their shapes"
    assert err.startswith(note)


@pytest.mark.parametrize("columns", ["80", "160"])
@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_has_help(
    command: str, columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    out = printed(capsys, command, "--help")
    assert "Usage" in out
    assert "…" not in out, "something is cut short"
    assert "--install-completion" not in out  # it would be that of a program called like the command


def test_every_command_names_its_output_alike() -> None:
    def options(command: Any) -> Iterator[set[str]]:
        yield from (set(parameter.opts) for parameter in command.params)
        if hasattr(command, "list_commands"):
            context = typer.Context(command)
            for name in command.list_commands(context):
                yield from options(command.get_command(context, name))

    outputs = [names for names in options(typer.main.get_command(app)) if names & {"-o", "--out", "--output"}]
    assert len(outputs) > 10
    assert all(names == {"--out", "-o"} for names in outputs)


def test_misspellings_are_reported_before_torch_is_imported() -> None:
    code = (
        "import sys\nfrom serving.cli.main import main\n"
        "try:\n    main(['predict', '--device', 'v100', '--job', 'dcgan-64:batchsize=3'])\n"
        "except SystemExit as end:\n    print(end.code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n"
    assert "batchsize" in done.stderr


def test_hints_continue_the_sentence_or_begin_one() -> None:
    assert InputError("x exists", expected="a new file", hint="name another").message == (
        "x exists: expected a new file; name another."
    )
    assert (
        InputError("x", hint="`cotenant zoo list` shows all").message == "x. `cotenant zoo list` shows all."
    )


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "--version").startswith("cotenant ")


def test_a_failing_user_module_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "fails_at_import.py").write_text("POLICY = nosuch\n")
    trace = ["--trace", "synthetic:rate=30,jobs=2", "--cluster", "small-mixed"]
    err = refused(capsys, "simulate", *trace, "--policy", "fails_at_import:POLICY")
    assert "NameError: name 'nosuch' is not defined" in err
    assert err.count("\n") == 1


def test_piped_tables_keep_whole_values(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    lines, entries = printed(capsys, "zoo", "list"), json.loads(printed(capsys, "zoo", "list", "--json"))
    for line, entry in zip(lines.splitlines()[1:], entries, strict=True):
        assert line.startswith(entry["name"])
        assert line.rstrip().endswith(entry["description"])


def test_names_that_the_locale_cannot_write_are_escaped(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("nodes: [{name: nœud-ü, gpus: [{device: v100}]}]\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "serving.cli.main", "place", "--cluster", str(file), "--job", "dcgan-64"],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0, done.stderr
    assert rb"place on n\u0153ud-\xfc/0" in done.stdout
