"""Plots of a comparison: completion-time CDF, queue, GPUs in use, Gantt."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from profiling.errors import InputError
from profiling.files import write_whole
from scheduling.simulator.gantt import MOST_GPUS, draw_gantt
from scheduling.simulator.result import SimulationResult

PLOT_FORMATS = (".svg", ".png", ".pdf")


def save_figure(figure: Any, path: Path) -> Path:
    """Write a matplotlib figure, whole or not at all; the file's suffix says the format.

    Raises:
        InputError: the suffix is not `.svg`, `.png` or `.pdf`.
    """
    if path.suffix not in PLOT_FORMATS:
        raise InputError(
            "unknown plot format", expected=", ".join(PLOT_FORMATS), got=path.suffix or str(path)
        )
    image = BytesIO()
    figure.savefig(image, format=path.suffix[1:], dpi=120)
    return write_whole(path, image.getvalue())


def plot_all(results: Sequence[SimulationResult], out: Path) -> list[Path]:
    """Write `jct_cdf.png`, `queue.png`, `utilization.png` and one `gantt-POLICY.png` each; the paths."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    paths: list[Path] = []

    def save(figure: Any, name: str) -> None:
        figure.tight_layout()
        save_figure(figure, out / name)
        plt.close(figure)
        paths.append(out / name)

    figure, axis = plt.subplots(figsize=(7, 4.5))
    for r in results:
        times = np.sort(r.completion_s)
        axis.plot(
            times / 3600, np.arange(1, len(times) + 1) / len(times), label=r.policy, drawstyle="steps-post"
        )
    axis.set(xscale="log", xlabel="job completion time (hours)", ylabel="share of jobs", ylim=(0, 1))
    axis.legend()
    axis.grid(alpha=0.3)
    save(figure, "jct_cdf.png")
    for name, label, series in (
        ("queue.png", "jobs waiting", [r.queue for r in results]),
        ("utilization.png", "GPUs in use", [r.busy for r in results]),
    ):
        figure, axis = plt.subplots(figsize=(8, 4))
        for r, points in zip(results, series, strict=True):
            if points:
                time, value = np.array(points).T
                axis.plot(time / 3600, value, label=r.policy, drawstyle="steps-post", linewidth=1)
        axis.set(xlabel="time (hours)", ylabel=label)
        axis.set_ylim(bottom=0)
        axis.legend()
        axis.grid(alpha=0.3)
        save(figure, name)
    for r in results:
        save(_gantt(r, plt), f"gantt-{r.policy}.png")
    return paths


def _gantt(result: SimulationResult, plt: Any) -> Any:
    gpus = min(result.gpus, MOST_GPUS)
    figure, axis = plt.subplots(figsize=(9, 1 + 0.28 * gpus))
    shown = draw_gantt(axis, result)
    part = f" (first {shown} of {result.gpus:,} GPUs)" if shown < result.gpus else ""
    axis.set_title(f"{result.policy}: jobs on each GPU{part}")
    return figure
