"""Plots of a comparison: completion-time CDF, queue, GPUs in use, Gantt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scheduling.simulator.result import SimulationResult

_MOST_GANTT_GPUS = 64


def plot_all(results: Sequence[SimulationResult], out: Path) -> list[Path]:
    """Write `jct_cdf.png`, `queue.png`, `utilization.png` and one `gantt-POLICY.png` each; the paths."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    out.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []

    def save(figure: Any, name: str) -> None:
        figure.tight_layout()
        figure.savefig(out / name, dpi=120)
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
    """One row a GPU; jobs that share it are drawn in thinner bars beside each other."""
    gpus = min(result.gpus, _MOST_GANTT_GPUS)
    figure, axis = plt.subplots(figsize=(9, 1 + 0.28 * gpus))
    colours = plt.get_cmap("tab20").colors
    lanes: list[list[float]] = [[] for _ in range(gpus)]
    bars = []
    for one in sorted((i for i in result.intervals if i.gpu < gpus), key=lambda i: i.start_s):
        ends = lanes[one.gpu]
        lane = next((k for k, end in enumerate(ends) if end <= one.start_s + 1e-9), len(ends))
        if lane == len(ends):
            ends.append(0.0)
        ends[lane] = one.stop_s
        bars.append((one, lane))
    for one, lane in bars:
        height = 0.9 / len(lanes[one.gpu])
        axis.broken_barh(
            [(one.start_s / 3600, (one.stop_s - one.start_s) / 3600)],
            (one.gpu - 0.45 + lane * height, height),
            facecolors=[colours[one.job % len(colours)]],
            edgecolor="white",
            linewidth=0.3,
        )
    axis.set(
        xlabel="time (hours)",
        ylabel="GPU",
        title=f"{result.policy}: who held which GPU",
        ylim=(gpus - 0.5, -0.5),
    )
    return figure
