"""What a record says besides figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import record as records
from benchmarks.record import kept_rows, record, record_part, stored_figures
from profiling.files import read_json


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    return tmp_path


def called(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr("sys.argv", ["rings", *words])


def test_the_command_can_be_pasted_and_names_no_local_folder(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called(
        monkeypatch, "--variant", "all parts", "/a/tables", "--data=/a/gavel", "philly:/a/b.csv",
        "--service", "http://127.0.0.1:8080/v1",
    )  # fmt: skip
    body = read_json(record("rings", {"jobs": 3}))
    assert set(body) == {"date", "machine", "command", "figures"}
    assert body["command"].endswith(
        " --variant 'all parts' tables --data=gavel philly:b.csv --service http://127.0.0.1:8080/v1"
    )
    assert {"processor", "python", "numpy", "torch"} <= set(body["machine"])
    assert (results / "rings.json").is_file()


def test_kept_figures_keep_their_date_and_command(monkeypatch: pytest.MonkeyPatch) -> None:
    called(monkeypatch)
    path = record("rings", {"order": 1, "gap": 2, "online": 3})
    for part in ("gap", "online"):
        called(monkeypatch, "--parts", part)
        record_part("rings", {part: 20})
    body = read_json(path)
    assert stored_figures("rings") == {"order": 1, "gap": 20, "online": 20}
    assert body["command"].endswith("--parts online")
    assert [(run["command"].split()[3:], run["of"]) for run in body["earlier"]] == [
        ([], ["order"]),
        (["--parts", "gap"], ["gap"]),
    ]
    assert all(set(run) == {"date", "machine", "command", "of"} for run in body["earlier"])
    record("rings", {"order": 2})
    assert "earlier" not in read_json(path)


def test_a_figure_of_another_name_is_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    called(monkeypatch)
    path = record("rings", {"programme": 1, "rows": 3})
    record_part("rings", {"rows": 4}, renamed={"programme": "program"})
    assert stored_figures("rings") == {"program": 1, "rows": 4}
    assert [run["of"] for run in read_json(path)["earlier"]] == [["program"]]
    record("rings", {"programme": 1, "program": 2})
    record_part("rings", {"rows": 5}, renamed={"programme": "program"})
    assert stored_figures("rings") == {"program": 2, "rows": 5}
    assert [run["of"] for run in read_json(path)["earlier"]] == [["program"]]
    record_part("rings", {"program": 6}, renamed={"programme": "program"})
    assert stored_figures("rings") == {"program": 6, "rows": 5}


def test_kept_rows_say_when_they_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    called(monkeypatch, "--first")
    assert kept_rows("rings", "rows") == []
    record("rings", {"rows": [{"name": "a"}], "gap": 1})
    for word in ("--second", "--third"):
        called(monkeypatch, word)
        record_part("rings", {"rows": [*kept_rows("rings", "rows"), {"name": word}]})
    rows = kept_rows("rings", "rows")
    assert [row["name"] for row in rows] == ["a", "--second", "--third"]
    assert [row["run"]["command"].split()[-1] for row in rows] == ["--first", "--second", "--third"]
    called(monkeypatch, "--gap")
    record_part("rings", {"gap": 2})  # the rows are then below `earlier`
    assert kept_rows("rings", "rows") == rows
