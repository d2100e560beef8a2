"""Gantt chart of which job held which GPU when; jobs that share a GPU are thinner bars side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from scheduling.core.job import JobState
from scheduling.simulator.result import Interval, SimulationResult

MOST_GPUS = 64
Color = tuple[float, float, float] | str


def draw_gantt(
    axis: Any,
    result: SimulationResult,
    gpus: Sequence[int] | None = None,
    color_of: Callable[[JobState], Color] | None = None,
) -> int:
    """Draw the recorded intervals of `result` on a matplotlib axis, one row a GPU, time in hours.

    Args:
        gpus: numbers of the GPUs to show; the first `MOST_GPUS` of them are drawn.
        color_of: colour of a job; twenty in turn by default.

    Returns:
        How many GPUs were drawn.
    """
    from matplotlib import colormaps

    colors = colormaps["tab20"].colors  # type: ignore[attr-defined]
    shown = list(range(result.gpus) if gpus is None else gpus)[:MOST_GPUS]
    row_of = {gpu: row for row, gpu in enumerate(shown)}
    for gpu, bars in lanes(result.intervals).items():
        if gpu not in row_of:
            continue
        height = 0.9 / (1 + max(lane for _, lane in bars))
        for interval, lane in bars:
            job = result.jobs[interval.job]
            axis.broken_barh(
                [(interval.start_s / 3600, (interval.stop_s - interval.start_s) / 3600)],
                (row_of[gpu] - 0.45 + lane * height, height),
                facecolors=[color_of(job) if color_of else colors[interval.job % len(colors)]],
                edgecolor="white",
                linewidth=0.3,
            )
    axis.set(xlabel="time (hours)", ylim=(max(len(shown), 1) - 0.5, -0.5))
    axis.set_yticks(range(len(shown)), [result.gpu_names[gpu] for gpu in shown])
    return len(shown)


def lanes(intervals: Sequence[Interval]) -> dict[int, list[tuple[Interval, int]]]:
    """By GPU, each interval with the lowest lane that is free when it starts."""
    ends: dict[int, list[float]] = {}
    placed: dict[int, list[tuple[Interval, int]]] = {}
    for interval in sorted(intervals, key=lambda i: i.start_s):
        own = ends.setdefault(interval.gpu, [])
        lane = next((k for k, end in enumerate(own) if end <= interval.start_s + 1e-9), len(own))
        if lane == len(own):
            own.append(0.0)
        own[lane] = interval.stop_s
        placed.setdefault(interval.gpu, []).append((interval, lane))
    return placed
