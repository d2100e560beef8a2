"""The quickstart runs from top to bottom and is committed without outputs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"


def test_committed_without_outputs() -> None:
    nbformat = pytest.importorskip("nbformat")
    cells = [c for c in nbformat.read(NOTEBOOK, as_version=4).cells if c.cell_type == "code"]
    assert [c.outputs for c in cells] == [[]] * len(cells)
    assert {c.execution_count for c in cells} == {None}


def test_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = (pytest.importorskip(name) for name in ("nbformat", "nbclient"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(NOTEBOOK.parent)}},
        env=dict(os.environ),
    ).execute()  # fmt: skip
    code = [c for c in notebook.cells if c.cell_type == "code"]
    printed = "".join(o.get("text", "") for c in code for o in c.outputs)
    assert "slowdown" in printed
    pictures = [o for c in code for o in c.outputs if "image/png" in o.get("data", {})]
    assert len(pictures) == 2, "the heat map and the curves"
