from __future__ import annotations

from typing import Any

import pytest
from matplotlib.axes import Axes

from datasets.stats import plot
from datasets.tables import make_table
from tests.datasets.test_tables import example


def test_the_histogram_has_every_point(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[float] = []
    hist = Axes.hist

    def counted(self: Axes, *args: Any, **options: Any) -> Any:
        result = hist(self, *args, **options)
        drawn.append(result[0].sum())
        return result

    monkeypatch.setattr(Axes, "hist", counted)
    rows = [
        example("colocation", set_id=str(ratio), member=member, throughput_ratio=ratio)
        for ratio in (0.5, 1.4, 1.9)
        for member in (0, 1)
    ]
    plot({"colocation": make_table("colocation", rows)})
    assert drawn == [6]
