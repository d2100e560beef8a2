from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from profiling.errors import InputError
from profiling.figures import FORMATS, save_figure


@pytest.mark.parametrize("suffix", [*FORMATS, ".SVG"])
def test_the_suffix_selects_the_type(tmp_path: Path, suffix: str) -> None:
    start = save_figure(Figure(), tmp_path / f"plot{suffix}").read_bytes()[:5]
    assert start == {".svg": b"<?xml", ".png": b"\x89PNG\r", ".pdf": b"%PDF-"}[suffix.lower()]


def test_other_types_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown picture type"):
        save_figure(Figure(), tmp_path / "plot.bmp")
