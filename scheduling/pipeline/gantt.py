"""Gantt chart of a schedule: one row per worker, time to the right."""

from __future__ import annotations

from pathlib import Path

from profiling.figures import save_figure
from scheduling.pipeline.timeline import Timeline

COLOURS = {"F": "#4c78a8", "B": "#f2a154", "W": "#72b26b"}
NAMES = {"F": "forward", "B": "backward", "W": "weight gradient"}


def draw(timeline: Timeline, path: Path | str, *, title: str = "") -> Path:
    """Draw the chart to a file (`.svg`, `.png` or `.pdf`, by its name) and return its path.

    Raises:
        InputError: a file type that cannot be drawn.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    rows = len(timeline.bubble_s)
    parts = 1 + max((slot.action.stage for slot in timeline.slots), default=0)
    figure = Figure(figsize=(11, 1.2 + 0.38 * min(rows, 40)), layout="constrained")
    axes = figure.add_subplot()
    label = len(timeline.slots) <= 400
    for slot in timeline.slots:
        width = slot.end_s - slot.start_s
        shade = (
            1.0 if parts <= rows else 0.55 + 0.45 * (slot.action.stage // rows) / max(parts // rows - 1, 1)
        )
        axes.barh(
            slot.worker,
            width,
            left=slot.start_s,
            height=0.86,
            color=COLOURS[slot.action.kind],
            alpha=shade,
            edgecolor="white",
            linewidth=0.6,
        )
        if label and width > timeline.total_s / 90:
            axes.text(
                slot.start_s + width / 2,
                slot.worker,
                str(slot.action.microbatch),
                ha="center",
                va="center",
                fontsize=7,
                color="white",
            )
    axes.set_yticks(range(rows), [f"worker {i}" for i in range(rows)])
    axes.invert_yaxis()
    axes.set_xlim(0, timeline.total_s or 1)
    axes.set_xlabel("seconds")
    axes.set_title(f"{title}  bubble {timeline.bubble_ratio:.1%}".strip())
    kinds = dict.fromkeys(slot.action.kind for slot in timeline.slots)
    axes.legend(
        handles=[Patch(color=COLOURS[k], label=NAMES[k]) for k in kinds],
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        frameon=False,
    )
    return save_figure(figure, Path(path))
