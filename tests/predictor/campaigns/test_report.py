from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from datasets.tables import write_table
from predictor.campaigns.report import compare, load_frames, pair_slowdowns, shown, write_report
from predictor.predictor import Predictor
from profiling.campaign.slices import SliceWriter
from profiling.errors import InputError, UnknownNameError


def member(job: str, **figures: Any) -> dict[str, Any]:
    model = job.partition(":")[0]
    return {
        "workload": job,
        "architecture": model,
        "batch_size": 2,
        "precision": "fp32",
        "frozen_prefix": 0,
        "outcome": "ok",
        "message": "",
        "total_layers": 8,
        "solo_step_time_s": 0.01,
        "solo_spread_ratio": 0.02,
        "solo_verdict": "stable",
        "memory_bytes": 3e8,
        **figures,
    }


def record(name: str, kind: str, members: list[dict[str, Any]], **request: Any) -> dict[str, Any]:
    return {
        "id": name,
        "request": {
            "kind": kind,
            "workloads": [m["workload"] for m in members],
            "sharing": "time-slice",
            **request,
        },
        "device": "cpu",
        "started_at": "2026-01-01T00:00:00+00:00",
        "host_input": "resident",
        "sharing": "time-slice",
        "members": members,
        "repeats": [{}],
        "set": {"memory_bytes": 6e8, "utilization_ratio": 1.0},
        "notes": [],
        "wall_s": 1.0,
    }


@pytest.fixture
def slices(tmp_path: Path) -> Path:
    folder = tmp_path / "campaign"
    together = {"step_time_s": 0.02, "throughput_ratio": 0.5, "spread_ratio": 0.03, "verdict": "stable"}
    with SliceWriter(folder) as writer:
        writer.append_run(record("a", "solo", [member("vgg11-cifar:batch_size=2")]))
        pair = [
            member("vgg11-cifar:batch_size=2", **together),
            member("neumf-ml1m:batch_size=64", **together),
        ]
        writer.append_run(record("b", "colocation", pair))
        for k in (0, 4, 7):
            job = member("vgg11-cifar:batch_size=2" + (f",frozen_prefix={k}" if k else ""), frozen_prefix=k)
            writer.append_run(record(f"f{k}", "freezing", [job]))
        dead = member("dcgan-64:batch_size=2", outcome="out-of-memory", message="<no memory>")
        writer.append_run(record("d", "solo", [dead]))
    return folder


def test_page_has_every_section_and_complete_figures(slices: Path, tmp_path: Path) -> None:
    page = write_report(slices, tmp_path / "report.html", predictor=None).read_text()
    for heading in ("Alone", "Together", "Spread", "Frozen prefix"):
        assert heading in page
    figures = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(figures) == 4
    for figure in figures:
        ElementTree.fromstring(figure)
    assert "&lt;no memory&gt;" in page
    assert "<script" not in page
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)


def test_slowdown_matrix_has_both_directions(slices: Path) -> None:
    pairs = pair_slowdowns(load_frames(slices)["colocation"])
    assert set(zip(pairs["job"], pairs["neighbour"], strict=True)) == {
        ("vgg11-cifar:batch_size=2", "neumf-ml1m:batch_size=64"),
        ("neumf-ml1m:batch_size=64", "vgg11-cifar:batch_size=2"),
    }
    assert pairs["slowdown"].eq(2.0).all()


def test_predictions_are_compared_with_members_that_have_a_measured_ratio(
    measured: tuple[pd.DataFrame, pd.DataFrame],
    predictor: Predictor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither with hard-coded ratios nor with bounds, of which imported tables have some."""
    colocation = measured[0].copy()
    monkeypatch.setattr("predictor.load_predictor", lambda _: predictor)

    def page(frame: pd.DataFrame) -> str:
        write_table(tmp_path, "colocation", frame)
        return write_report(tmp_path, tmp_path / "report.html").read_text()

    whole = page(colocation)
    figure = re.findall(r"<svg.*?</svg>", whole, flags=re.DOTALL)[-1]
    ElementTree.fromstring(figure)
    said = re.search(r"(\d+) members: .*?(\d+)% within", whole)
    assert said
    assert int(said[1]) == len(colocation)
    off = compare(colocation, predictor)
    inside = ((off["measured"] >= off["lower"]) & (off["measured"] <= off["upper"])).to_numpy()
    assert int(said[2]) == round(100 * inside.mean())

    rows = colocation.index[inside][:6]
    colocation.loc[rows[:3], ["throughput_ratio", "is_target"]] = [0.001, False]
    colocation.loc[rows[3:], "censored"] = True
    assert len(pair_slowdowns(colocation)) == len(compare(colocation, predictor)) == len(colocation) - 6
    said = re.search(r"(\d+) members: .*?(\d+)% within", page(colocation))
    assert said
    assert int(said[1]) == len(colocation) - 6
    assert int(said[2]) == round(100 * (inside.sum() - 6) / (len(colocation) - 6))
    colocation["is_target"] = False
    assert "no member has a measured throughput ratio" in page(colocation)


def test_a_predictor_that_does_not_know_a_job_is_not_compared(
    slices: Path, tmp_path: Path, predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("predictor.load_predictor", lambda _: predictor)
    page = write_report(slices, tmp_path / "report.html").read_text()
    assert "No comparison: no such model" in page


def test_without_an_unfrozen_run_freezing_has_no_figure(tmp_path: Path) -> None:
    with SliceWriter(tmp_path / "campaign") as writer:
        job = member("vgg11-cifar:batch_size=2,frozen_prefix=4", frozen_prefix=4)
        writer.append_run(record("f", "freezing", [job]))
    page = write_report(tmp_path / "campaign", tmp_path / "report.html", predictor=None).read_text()
    assert "No unfrozen run to compare with: vgg11-cifar" in page


def test_captured_models_have_the_name_that_their_owner_gave() -> None:
    row = {"workload": "graph:0123abcd:frozen_prefix=2", "architecture": "mine:model"}
    assert shown(row) == "mine:model:frozen_prefix=2"
    assert shown({"workload": "vgg11-cifar:batch_size=2", "architecture": "x"}) == "vgg11-cifar:batch_size=2"
    graph = f"graph:{'0123456789abcdef' * 4}"
    assert shown({"workload": graph, "architecture": graph}) == "graph:0123456789abcdef"


def test_missing_predictor_is_refused(slices: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="no such predictor"):
        write_report(slices, tmp_path / "report.html", predictor=str(tmp_path / "nothing"))
    assert not (tmp_path / "report.html").exists()


def test_folder_without_measurements(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no measurements"):
        write_report(tmp_path, tmp_path / "report.html")
    (tmp_path / "solo.parquet").write_text("cut off")
    with pytest.raises(InputError, match=r"solo\.parquet is not a Parquet file"):
        write_report(tmp_path, tmp_path / "report.html")
