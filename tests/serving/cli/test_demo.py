"""`cotenant demo` on a terminal of 80 columns, and its conclusions with the shipped predictor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import printed, refused, run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


def test_demo_fits_on_80_columns(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = printed(capsys, "demo", "--plot", folder / "demo.svg")
    path_line = next(line for line in out.splitlines() if line.startswith("Picture: "))
    assert Path(path_line.removeprefix("Picture: ")) == folder / "demo.svg"
    assert all(len(line.rstrip()) <= 80 for line in out.splitlines() if line != path_line)
    assert "…" not in out
    assert "transformer-multi30k" in out
    assert sum(line.startswith("  cotenant ") for line in out.splitlines()) == 3
    picture = (folder / "demo.svg").read_text()
    assert picture.rstrip().endswith("</svg>")


def test_conclusions_of_the_demo(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "demo", "--plot", folder / "demo.png", "--json")
    body = json.loads(out)
    assert code == 0
    fitting = [pair for pair in body["pairs"] if pair["fits"]]
    assert fitting[0]["throughput_ratio"] > 1.2 > fitting[-1]["throughput_ratio"]
    assert any(not pair["fits"] for pair in body["pairs"])
    assert len(body["placements"]) == 12
    assert any(placement["beside"] for placement in body["placements"])
    assert body["policies"]["isacpp"]["gpu_hours"] < body["policies"]["exclusive"]["gpu_hours"]


def test_an_unknown_plot_format(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert ".svg" in refused(capsys, "demo", "--plot", tmp_path / "demo.bmp")
