"""A small scatter plot of observed over predicted step time against time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from serving.handlers.calibration import Point

WIDTH, HEIGHT = 600.0, 160.0
# Factors at the edges of the plot; points beyond are clamped to them.
_MOST = math.log(2.0)
_POINTS = 500


@dataclass(frozen=True, slots=True)
class ErrorPlot:
    """Points in a box of `WIDTH` by `HEIGHT`: the middle is as predicted, the top twice as long.

    Attributes:
        points: (x, y, whether within the interval).
        first, last: times at the left and right edges.
    """

    points: tuple[tuple[float, float, bool], ...]
    first: float
    last: float
    width: float = WIDTH
    height: float = HEIGHT


def error_plot(points: Sequence[Point]) -> ErrorPlot | None:
    """Plot the latest points, oldest first; None if there are none."""
    shown = points[-_POINTS:]
    if not shown:
        return None
    first, last = shown[0].observed_at, shown[-1].observed_at
    return ErrorPlot(
        tuple(
            (
                WIDTH * ((p.observed_at - first) / (last - first) if last > first else 0.5),
                HEIGHT / 2 * (1 - max(-1.0, min(1.0, p.log_ratio / _MOST))),
                p.covered,
            )
            for p in shown
        ),
        first,
        last,
    )
