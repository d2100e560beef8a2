from __future__ import annotations

from types import SimpleNamespace

import pytest
from rich.table import Table

from serving.cli.evaluate import SETS, _show, _show_observed
from serving.cli.output import (
    bullets,
    console,
    duration,
    headline,
    interval,
    job_cell,
    plain_table,
    print_whole,
)


@pytest.mark.parametrize("name", ["run[lr]", "run[/lr]", "[bold]run[/bold]", "run:fire:", r"C:\[run]"])
def test_names_are_printed_as_they_are(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = plain_table("job")
    table.add_row(name)
    for line in (name, headline("job", f"  {name}"), table, bullets([name])):
        console().print(line)
        assert name in capsys.readouterr().out


def test_a_table_wider_than_the_terminal_is_not_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    table = Table("policy", box=None)
    for _ in range(4):
        table.add_column("GPU\nhours", no_wrap=True)
    table.add_row("isacpp-interference", *["123,456"] * 4)
    print_whole(table)
    assert capsys.readouterr().out.splitlines()[-1].split() == ["isacpp-interference", *["123,456"] * 4]


@pytest.mark.parametrize("columns", ["10", "30", "40"])
def test_no_word_of_a_table_is_cut(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    table = plain_table("policy", "campaign", "devices", right=["sets"])
    table.add_column("points")
    table.add_row("fifo", "gavel-2020", "k80 p100 v100", "1538")
    print_whole(table)
    words = capsys.readouterr().out.split()
    assert {"policy", "gavel-2020", "k80", "p100", "v100"} <= set(words)


def test_step_times_have_no_exponent() -> None:
    assert [duration(s) for s in (0.9996, 999.6, 1234.5)] == ["1000 ms", "1000 s", "1234 s"]
    assert interval(SimpleNamespace(value=0.9, lower=0.00456, upper=1.2345)) == "[4.56, 1234]"


def test_captured_graphs_have_short_names(capsys: pytest.CaptureFixture[str]) -> None:
    name = "graph:" + "0123456789abcdef" * 4
    assert job_cell(f"{name}:precision=amp") == "graph:0123456789abcdef\nprecision=amp"
    console().print(bullets([f"{name} is unlike the others"]))
    scores = {"n": 4, "mape_percent": 1.0, "r2": 0.5, "coverage_90": 0.9}
    part = {"metrics": scores, "before": scores}
    _show({"target": SETS, "split": "none", "metrics": scores, "by_model": {name: scores}, "by_device": {}})
    _show_observed({**part, "observe": 2, "probes": "random", "by_model": {name: part}})
    printed = capsys.readouterr().out
    assert printed.count("graph:0123456789abcdef ") == 3
    assert name not in printed
