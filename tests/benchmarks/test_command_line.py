"""How benchmarks show their options, and what they say when their data are wrong."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import benchmarks
from benchmarks import observed_sets, pipeline, policies, ring_link
from benchmarks.command_line import (
    add_name,
    benchmark_parser,
    names_of,
    record_name,
    run_benchmark,
    several,
)
from datasets.tables import empty_table, write_table
from profiling.errors import InputError, UnknownNameError

FILES = sorted(f for f in Path(benchmarks.__file__).parent.glob("*.py") if f.stem != "command_line")


def calls(file: Path, name: str) -> list[ast.Call]:
    """Calls of functions or methods of this name."""
    tree = ast.parse(file.read_text())
    return [
        n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func).split(".")[-1] == name
    ]


def test_help_shows_how_to_start_a_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        benchmark_parser("/somewhere/rings.py", "Rings.\n\n    python -m benchmarks.rings").parse_args(
            ["--help"]
        )
    printed = capsys.readouterr().out
    assert printed.startswith("usage: python -m benchmarks.rings [-h]\n")
    assert "\n    python -m benchmarks.rings\n" in printed


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_option_is_explained(file: Path) -> None:
    for call in calls(file, "add_argument"):
        assert "help" in {keyword.arg for keyword in call.keywords}, ast.unparse(call)
    if file.stem != "__main__":  # which is `python -m benchmarks`
        assert not calls(file, "ArgumentParser")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_benchmark_reads_its_command_line(file: Path) -> None:
    """Otherwise `--help` measures for minutes and replaces the record."""
    if calls(file, "run_benchmark") and file.stem != "reality_job":  # a job that `reality` starts
        assert calls(file, "benchmark_parser")
        assert calls(file, "parse_args")


def test_part_of_a_benchmark_needs_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    parser = benchmark_parser("/somewhere/rings.py", None)
    parser.add_argument("--max-gpus", type=int, default=4, help="GPUs")
    add_name(parser)

    def name(*words: str) -> str:
        return record_name(parser, parser.parse_args(words), "rings", "max_gpus")

    assert name() == name("--max-gpus", "4") == "rings"
    assert name("--max-gpus", "2", "--name", "small") == "small"
    with pytest.raises(SystemExit) as end:
        name("--max-gpus", "2")
    assert end.value.code == 2
    printed = capsys.readouterr().err
    assert "--max-gpus would replace the whole record rings.json" in printed
    assert "--name NAME" in printed


def test_some_policies_do_not_replace_the_record_of_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(policies, "run_all", lambda *_, **__: pytest.fail("simulated"))
    monkeypatch.setattr("sys.argv", ["policies", "--data", "tables", "--policies", "fifo"])
    with pytest.raises(SystemExit) as end:
        policies.main()
    assert end.value.code == 2
    assert "--policies would replace" in capsys.readouterr().err


def test_wrong_data_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        raise InputError("no sets", got="none")

    with pytest.raises(SystemExit) as end:
        run_benchmark("/somewhere/rings.py", main)
    assert end.value.code == InputError.exit_code
    assert capsys.readouterr().err.startswith("benchmarks.rings: no sets")


def test_tables_without_the_campaign(tmp_path: Path) -> None:
    for name in ("colocation", "solo"):
        write_table(tmp_path, name, empty_table(name))
    with pytest.raises(InputError, match=r"lack the campaign.*lucid"):
        observed_sets.measured_sets(tmp_path, "lucid")


def test_a_name_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    parser = benchmark_parser("/somewhere/policies.py", None)
    parser.add_argument("--kinds", type=names_of(("rigid", "elastic")), default=["rigid"], help="kinds")
    parser.add_argument("--seeds", type=several, default=3, help="seeds")
    options = parser.parse_args(["--kinds", "elastic,rigid", "--seeds", "2"])
    assert (options.kinds, options.seeds) == (["elastic", "rigid"], 2)
    for words in (["--kinds", "rigid,elastik"], ["--seeds", "1"]):
        with pytest.raises(SystemExit):
            parser.parse_args(words)
    printed = capsys.readouterr().err
    assert "expected some of rigid, elastic; got elastik" in printed
    assert "expected a number from 2" in printed


def test_a_ring_is_measured_for_longer_than_it_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ring_link, "skip_reason", lambda: pytest.fail("started"))
    monkeypatch.setattr("sys.argv", ["ring_link", "--seconds", "1"])
    with pytest.raises(SystemExit):
        ring_link.main()
    assert "at least 2, got 1" in capsys.readouterr().err


def test_an_unknown_policy_leaves_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "record", lambda *_: pytest.fail("recorded"))
    monkeypatch.setattr("sys.argv", ["policies", "--data", "tables", "--policies", "typo", "--name", "some"])
    with pytest.raises(UnknownNameError, match="typo"):
        policies.main()


def test_a_folder_without_profiles_leaves_the_plans_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pipeline, "record_part", lambda *_: pytest.fail("recorded"))
    monkeypatch.setattr("sys.argv", ["pipeline", "--profiles", str(tmp_path), "--parts", "models"])
    with pytest.raises(InputError, match="no profiles"):
        pipeline.main()


def test_fewer_sets_than_asked_for_are_divided_into_thirds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sets = [(f"set {k}", k) for k in range(7)]
    monkeypatch.setattr(observed_sets, "measured_sets", lambda *_: sets)
    monkeypatch.setattr(
        observed_sets,
        "streamed",
        lambda _, seen: {
            way: [[[float(at // 2), 1.0, 0.0]] for at in range(len(seen))] for way in observed_sets.WAYS
        },
    )
    monkeypatch.setattr(observed_sets, "held_out", lambda *_: {})
    monkeypatch.setattr("predictor.load_predictor", lambda: SimpleNamespace(version="none"))
    recorded: dict[str, Any] = {}
    monkeypatch.setattr(observed_sets, "record", lambda _, figures: recorded.update(figures))
    monkeypatch.setattr("sys.argv", ["observed_sets", "--data", str(tmp_path), "--sets", "150"])
    observed_sets.main()
    # The sets of each third, in the order of every seed, are off by e to the power of 0, 1 and 2.
    assert recorded["lucid"]["alone"]["error_percent"] == [0.0, 171.8, 638.9]
