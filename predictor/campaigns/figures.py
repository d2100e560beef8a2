"""Figures of the measurement report, as inline SVG."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from profiling.spelling import short_hashes

if TYPE_CHECKING:
    import pandas as pd


def draw(name: str, width: float, height: float, paint: Callable[[Any, Any], None]) -> str:
    """An inline `<svg>` element of `width` x `height` inches, drawn by `paint(figure, axes)`.

    `name` prefixes its ids.
    """
    import matplotlib

    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif", "font.size": 9}
    ):
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        paint(figure, figure.subplots())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    # several figures share a page, so their identifiers must not clash
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'((?:xlink:)?href=")#', rf"\1#{name}-", text)
    return re.sub(r"url\(#", f"url(#{name}-", text)


def heat_map(pairs: pd.DataFrame, name: str) -> str:
    """Inline SVG: median slowdown of each job (row) beside each neighbour (column).

    `pairs` is as returned by `pair_slowdowns`.
    """
    jobs = sorted({*pairs["job"], *pairs["neighbour"]})
    at = {job: i for i, job in enumerate(jobs)}
    grid = np.full((len(jobs), len(jobs)), np.nan)
    for (job, neighbour), some in pairs.groupby(["job", "neighbour"]):
        grid[at[str(job)], at[str(neighbour)]] = some["slowdown"].median()

    def paint(figure: Any, axes: Any) -> None:
        image = axes.imshow(grid, cmap="YlOrRd", vmin=1.0, vmax=max(2.0, float(np.nanmax(grid))))
        axes.set_xticks(range(len(jobs)), jobs, rotation=90)
        axes.set_yticks(range(len(jobs)), jobs)
        axes.set_xlabel("neighbour")
        axes.set_ylabel("slowdown of")
        middle = (1.0 + np.nanmax(grid)) / 2
        for row, column in zip(*np.nonzero(~np.isnan(grid)), strict=True):
            colour = "white" if grid[row, column] > middle + 0.25 else "black"
            axes.text(
                column, row, f"{grid[row, column]:.2f}", ha="center", va="center", fontsize=6.5, color=colour
            )
        figure.colorbar(image, ax=axes, label="slowdown")

    side = 3.6 + 0.36 * len(jobs)
    return draw(name, side + 1.0, side, paint)


def spread(measurements: pd.DataFrame) -> str:
    """Inline SVG: cumulative distribution of the spread over repeats.

    It shows solo step times and throughput ratios.
    """

    def paint(_figure: Any, axes: Any) -> None:
        for column, label in (("solo_spread_ratio", "step time alone"), ("spread_ratio", "throughput ratio")):
            values = np.sort(measurements[column].dropna().to_numpy(dtype=float)) * 100
            if len(values):
                axes.step(values, np.arange(1, len(values) + 1) / len(values), where="post", label=label)
        axes.set_xlim(left=0)
        axes.set_xlabel("spread over the repeats, %")
        axes.set_ylabel("share of figures")
        axes.set_ylim(0, 1.02)
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend()

    return draw("spread", 6.0, 3.2, paint)


def freezing(frame: pd.DataFrame, column: str, label: str, name: str) -> str:
    """Inline SVG: `column` over the frozen share of layers, relative to nothing frozen, one line per model.

    Dashed with cached activations. Models without an unfrozen run are omitted.
    """

    def paint(_figure: Any, axes: Any) -> None:
        for i, (model, rows) in enumerate(frame.groupby("architecture")):
            base = rows.loc[rows["frozen_prefix"] == 0, column].median()
            if not base > 0:
                continue
            cached = rows["note"].fillna("") == "cached-activations"
            for some, style in ((rows[~cached], "o-"), (rows[cached], "s--")):
                curve = some.groupby(some["frozen_prefix"] / some["total_layers"])[column].median() / base
                if len(curve):
                    axes.plot(
                        curve.index.to_numpy(dtype=float),
                        curve.to_numpy(dtype=float),
                        style,
                        color=f"C{i % 10}",
                        label=short_hashes(str(model)) if style == "o-" else None,
                        markersize=4,
                    )
        axes.set_xlabel("frozen share of atomic layers (dashed: cached activations)")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=7.5)

    return draw(name, 6.4, 3.8, paint)


def predicted(frame: pd.DataFrame) -> str:
    """Inline SVG: predicted against measured throughput ratio with 90 % intervals.

    `frame` is as returned by `report.compare`.
    """

    def paint(_figure: Any, axes: Any) -> None:
        x = frame["measured"].to_numpy(dtype=float)
        y = frame["predicted"].to_numpy(dtype=float)
        low, high = (frame[c].to_numpy(dtype=float) for c in ("lower", "upper"))
        error = np.maximum(np.stack([y - low, high - y]), 0)
        axes.errorbar(x, y, yerr=error, fmt="o", ms=3.5, lw=0.6, alpha=0.7)
        top = max(1.0, float(x.max()), float(y.max())) * 1.03
        axes.plot([0, top], [0, top], color="grey", lw=0.8)
        axes.set_xlim(0, top)
        axes.set_ylim(0, top)
        axes.set_aspect("equal")
        axes.set_xlabel("measured throughput ratio")
        axes.set_ylabel("predicted (90 % interval)")
        axes.grid(alpha=0.3)

    return draw("predicted", 4.8, 4.6, paint)
