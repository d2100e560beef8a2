from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from datasets.tables import empty_table, read_table, write_table
from datasets.user_files import add_rows
from predictor.evaluation.protocols import runner
from predictor.examples import featurizer
from profiling.errors import ConflictError
from tests.commands import printed, refused, run
from tests.once import gavel_tables
from tests.predictor.synthetic import graph_source, tables
from tests.shared import shared_data


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    return json.loads(printed(capsys, *arguments, "--json", code=code))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    from datasets.importers import import_source

    folder = tmp_path_factory.mktemp("tables")
    shutil.copytree(gavel_tables(), folder, dirs_exist_ok=True)
    import_source("lucid", shared_data("lucid"), folder)
    return str(folder)


def test_import_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = answer(capsys, "data", "import", "gavel", str(shared_data("gavel")), "-o", str(tmp_path))
    assert set(summary) == {"source", "licence", "read", "kept", "flagged", "dropped", "notes"}
    assert summary["kept"]["colocation"] > 1000
    assert "mirror copy of a pair" in summary["dropped"]


def test_import_of_a_truncated_file_is_one_line_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shared_data("gavel", "simulation_throughputs.json").read_text()
    (tmp_path / "simulation_throughputs.json").write_text(text[: len(text) // 2])
    answered = refused(capsys, "data", "import", "gavel", tmp_path, "-o", tmp_path / "out")
    error = answered.strip().splitlines()[-1]
    assert error.startswith("cotenant:")
    assert "line" in error
    assert not (tmp_path / "out").exists()


def test_sources(capsys: pytest.CaptureFixture[str]) -> None:
    names = {source["name"]: source for source in answer(capsys, "data", "sources")}
    assert {"gavel", "lucid", "timm", "ecnas", "neusight", "miso", "gpumemnet"} <= set(names)
    shippable = {name for name, source in names.items() if source["may_ship"]}
    assert shippable == {name for name, source in names.items() if source["licence"] in ("MIT", "Apache-2.0")}
    assert not {"lucid", "gpumemnet"} & shippable
    assert "non-commercial" in printed(capsys, "data", "sources")


def test_stats_and_plot(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = answer(capsys, "data", "stats", data, "--plot", str(tmp_path / "p.svg"))
    assert {row["campaign"] for row in summary["colocation"]} == {"gavel-2019", "gavel-2020", "lucid"}
    assert (tmp_path / "p.svg").read_text().lstrip().startswith("<?xml")
    assert "gavel-2020" in printed(capsys, "data", "stats", data)


def test_stats_of_tables_without_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_table(tmp_path, "solo", empty_table("solo"))
    assert "have no rows" in " ".join(printed(capsys, "data", "stats", str(tmp_path)).split())


def test_a_plot_of_tables_is_an_svg(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_table(tmp_path, "solo", empty_table("solo"))
    for name, message in (("p.png", "expected .svg, got .png"), ("solo.parquet/p.svg", "cannot be a folder")):
        assert message in refused(capsys, "data", "stats", tmp_path, "--plot", tmp_path / name)
    assert not (tmp_path / "p.png").exists()


def test_graph_dataset_is_built_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("profiling.capture.graph_for", graph_source)
    colocation, _ = tables()
    write_table(tmp_path / "data", "colocation", colocation)
    arguments = ("data", "graphs", str(tmp_path / "data"), "-o", str(tmp_path / "graphs"))
    first = answer(capsys, *arguments)
    assert (first["sets"], first["workloads"], first["graphs"]) == (colocation.set_id.nunique(), 4, 4)
    assert (Path(first["folder"]) / "index.json").is_file()
    monkeypatch.delattr("profiling.capture.graph_for")
    assert answer(capsys, *arguments) == first
    assert "20 sets, 4 workloads, 4 graphs" in printed(capsys, *arguments)
    write_table(tmp_path / "data", "colocation", colocation[colocation.set_id == colocation.set_id.iloc[0]])
    monkeypatch.setattr("profiling.capture.graph_for", graph_source)
    assert ": 1 set, 1 workload, 1 graph" in printed(capsys, *arguments)


def test_template_validates_and_becomes_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = str(tmp_path / "mine.csv")
    printed(capsys, "data", "template", "-o", mine)
    assert answer(capsys, "data", "validate", mine, "-o", str(tmp_path / "d"))["valid"] is True
    assert answer(capsys, "data", "stats", str(tmp_path / "d"))["colocation"][0]["sets"] == 1
    assert "throughput_ratio: " in printed(capsys, "data", "template", "--describe")


def test_ratios_that_look_like_slowdowns_are_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.csv"
    frame = pd.read_csv(io.StringIO(printed(capsys, "data", "template")))
    slow = 1 / frame["throughput_ratio"]
    frame.assign(throughput_ratio=slow, step_time_s=None, solo_step_time_s=None).to_csv(mine, index=False)
    (note,) = answer(capsys, "data", "validate", str(mine))["notes"]
    assert "slowdowns" in note["note"]


def test_solo_runs_that_contradict_sets_are_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(tmp_path / "d")
    for table, notes in (("colocation", 0), ("solo", 1), ("colocation", 1)):
        mine = tmp_path / f"{table}.csv"
        frame = pd.read_csv(io.StringIO(printed(capsys, "data", "template", "--table", table)))
        if table == "solo":
            frame = frame.assign(step_time_s=1.0, samples_per_s=None)
        frame.to_csv(mine, index=False)
        found = answer(capsys, "data", "validate", str(mine), "-o", data)["notes"]
        assert ["table solo" in each["note"] for each in found] == [True] * notes


def test_a_filled_in_template_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.csv"
    mine.write_text("my,own,rows\n")
    assert "--force" in refused(capsys, "data", "template", "-o", mine)
    assert mine.read_text() == "my,own,rows\n"
    printed(capsys, "data", "template", "-o", str(mine), "--force")
    assert mine.read_text() == printed(capsys, "data", "template")


def test_rows_of_a_second_file_are_added_and_the_same_file_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, data = printed(capsys, "data", "template"), tmp_path / "d"
    set_id = pd.read_csv(io.StringIO(text))["set_id"][0]
    for name, content in (("a", text), ("b", text.replace(set_id, "another"))):
        (tmp_path / f"{name}.csv").write_text(content)
    counts = []
    for name, *more in (["a"], ["b"], ["a"], ["b", "--replace"]):
        found = answer(capsys, "data", "validate", str(tmp_path / f"{name}.csv"), "-o", str(data), *more)
        counts.append((len(read_table(data, "colocation")), found["replaced"]))
    assert counts == [(2, 0), (4, 0), (4, 2), (2, 4)]
    told = printed(capsys, "data", "validate", str(tmp_path / "b.csv"), "-o", str(data))
    assert told.endswith(f"added to {data} in place of 2 rows\n")


def test_rows_without_a_set_are_kept_once(tmp_path: Path) -> None:
    rows = tables()[1].assign(source="mine")
    for part in (rows[:2], rows, rows):
        add_rows(tmp_path, "solo", part)
    assert len(read_table(tmp_path, "solo")) == len(rows)


def test_validate_names_row_column_expected_and_got(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, "data", "template")
    (tmp_path / "mine.csv").write_text(text.replace("0.83", "fast").replace("0.0218", "0"))
    report = answer(capsys, "data", "validate", str(tmp_path / "mine.csv"), code=2)
    assert {(f["row"], f["column"]) for f in report["faults"]} == {
        (1, "throughput_ratio"),
        (2, "step_time_s"),
    }
    shown = printed(capsys, "data", "validate", str(tmp_path / "mine.csv"), code=2)
    assert "row 1, column throughput_ratio: expected a number above 0, got 'fast'" in shown


def test_source_names_of_importers_are_refused_in_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, data = tmp_path / "mine.csv", tmp_path / "d"
    template = printed(capsys, "data", "template")
    bundled = template.replace(",mine-2026-01,", ",cpu-2026-11,")
    for text, source in ((template, "gavel"), (bundled, "cotenant")):
        mine.write_text(text.replace(",mine,", f",{source},"))
        report = answer(capsys, "data", "validate", str(mine), "-o", str(data), code=2)
        assert [(f["row"], f["column"], f["got"]) for f in report["faults"]] == [(1, "source", repr(source))]
        assert not data.exists()
        # Files that an importer wrote are valid in themselves.
        report = answer(capsys, "data", "validate", str(mine))
        assert report["valid"]
        assert "--out would refuse" in report["notes"][0]["note"]
        with pytest.raises(ConflictError, match=source):
            add_rows(data, "colocation", pd.read_csv(mine))
    # `cotenant profile` writes its rows under this source.
    mine.write_text(template.replace(",mine,", ",cotenant,"))
    assert answer(capsys, "data", "validate", str(mine), "-o", str(data))["valid"]


@pytest.fixture
def hand_made_graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every job has the same small graph; nothing is captured."""
    monkeypatch.setattr("profiling.capture.graph_for", lambda job: graph_source(replace(job, model="alpha")))
    featurizer.shared_featurizer.cache_clear()
    yield
    featurizer.shared_featurizer.cache_clear()


@pytest.mark.usefixtures("hand_made_graphs")
def test_benchmark_list_and_run(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "collect", partial(runner.collect, resamples=20))
    protocols = {row["name"]: row for row in answer(capsys, "benchmark", "list")}
    assert "trees-solo" in protocols["lucid-by-model"]["predictors"]
    assert "trees-solo" not in protocols["lucid-by-model-graph-only"]["predictors"]
    options = ("--data", data, "--out", str(tmp_path), "--predictors", "constant,additive")
    arguments = ("benchmark", "run", "lucid-by-model", *options)
    report = answer(capsys, *arguments)
    constant, additive = (report["predictors"][name]["metrics"] for name in ("constant", "additive"))
    assert additive["mape_percent"] < constant["mape_percent"]
    assert (tmp_path / "lucid-by-model" / "results.md").is_file()
    code, shown, told = run(capsys, *arguments)
    assert code == 0
    assert "0 of 20 fits to do" in told
    percent = {
        line.split()[0]: line.split()[1]
        for line in shown.splitlines()
        if line.startswith(("constant", "additive"))
    }
    for name, row in report["predictors"].items():
        assert float(percent[name]) == pytest.approx(row["metrics"]["mape_percent"], abs=0.06)


def test_benchmark_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "benchmark", "run", "lucid-by-moon", code=2)
    printed(capsys, "benchmark", "run", "lucid-by-model", "--data", str(tmp_path), code=2)


def test_a_predictor_of_other_protocols_is_refused(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("benchmark", "run", "lucid-by-model", "--data", data, "-o", str(tmp_path / "results"))
    told = refused(capsys, *command, "--predictors", "constant,graph-memory")
    assert "graph-memory does not take part in lucid-by-model: expected one of additive, constant, " in told
    assert not (tmp_path / "results").exists()


def test_a_learning_curve_is_printed_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from predictor.evaluation.protocols.few_shot.catalogue import LEARNING_CURVES

    curve = LEARNING_CURVES["lucid-few-shot"]
    figures = {"protocol": curve.name, "figures": {"process": 1.5}}
    short = replace(curve, report=lambda *_: figures, markdown=lambda _: "| [process] | 1.5 |\n")
    monkeypatch.setitem(LEARNING_CURVES, curve.name, short)
    write_table(tmp_path, "solo", empty_table("solo"))
    command = ("benchmark", "run", curve.name, "--data", tmp_path, "-o", tmp_path / "results")
    assert "| [process] | 1.5 |" in printed(capsys, *command)
    folder = tmp_path / "results" / curve.name
    assert json.loads((folder / "results.json").read_text()) == figures == answer(capsys, *map(str, command))
    assert (folder / "results.md").read_text() == "| [process] | 1.5 |\n"
    assert "always runs all of its learners" in refused(capsys, *command, "--seeds", "2")
