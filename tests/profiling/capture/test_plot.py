from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

import pytest
from matplotlib.figure import Figure

from profiling.capture import capture_zoo
from profiling.capture.plot import _line, plot_graph
from profiling.errors import InputError
from profiling.workload import Workload


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_plot(tmp_path: Path, suffix: str) -> None:
    graph = capture_zoo(Workload("ppo-lunarlander"))
    path = plot_graph(graph, tmp_path / f"graph.{suffix}")
    data = path.read_bytes()
    assert len(data) > 1000
    if suffix == "svg":
        assert all(f"<!-- {op.kind} -->".encode() in data for op in graph.operators), "its kinds, as a legend"
        assert plot_graph(graph, tmp_path / "again.svg").read_bytes() == data
    with pytest.raises(InputError, match="unknown picture type"):
        plot_graph(graph, tmp_path / "graph.txt")


def test_an_edge_that_skips_operators_goes_around_them() -> None:
    start, end = (0.0, 0.0), (0.0, -4.0)
    assert _line(start, end, skips=False) == [start, end]
    curve = _line(start, end, skips=True)
    assert (curve[0], curve[-1]) == (start, end)
    assert all(x > 0 for x, _ in curve[1:-1])
    assert [y for _, y in curve] == sorted((y for _, y in curve), reverse=True)


def test_a_plot_that_fails_leaves_the_older_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = plot_graph(capture_zoo(Workload("ppo-lunarlander")), tmp_path / "graph.png")
    before = path.read_bytes()

    def full(_self: Figure, target: BinaryIO | Path, **_options: object) -> None:
        with target.open("wb") if isinstance(target, Path) else nullcontext(target) as stream:
            stream.write(b"half a picture")
        raise OSError("No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(OSError, match="No space left"):
        plot_graph(capture_zoo(Workload("ppo-lunarlander")), path)
    assert path.read_bytes() == before
