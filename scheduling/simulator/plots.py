"""Plots of a comparison: means with error bars, completion-time CDF, queue, GPUs in use, Gantt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from predictor.types import Floats
from profiling.figures import save_figure
from scheduling.simulator.gantt import MOST_GPUS, draw_gantt
from scheduling.simulator.result import SimulationResult


def plot_all(results: Mapping[str, Sequence[SimulationResult]], out: Path, gantt_filter: str) -> None:
    """Write `summary.png`, `jct_cdf.png`, `queue.png`, `utilization.png` and `gantt-POLICY.png` files.

    Args:
        results: by policy, one result per seed. Means have standard errors over the seeds, the CDF is over
            the jobs of all seeds, and the other plots show the first seed.
        out: folder for the files.
        gantt_filter: Gantt charts show only GPUs whose type or place contains this text.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    styles = _styles(list(results))
    first = {policy: own[0] for policy, own in results.items()}
    seeds = max((len(own) for own in results.values()), default=0)
    of_first = " (first seed)" if seeds > 1 else ""

    def lines(
        name: str, title: str, labels: tuple[str, str], series: dict[str, tuple[Floats, Floats]]
    ) -> Any:
        figure = Figure(figsize=(9, 4.5))
        axis = figure.subplots()
        for policy, (x, y) in series.items():
            axis.plot(x, y, label=policy, drawstyle="steps-post", linewidth=1.2, **styles[policy])
        axis.set(xlabel=labels[0], ylabel=labels[1], title=title)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        # Beside the plot, so that twenty policies do not cover the lines.
        axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize="small")
        if name == "jct_cdf.png":
            axis.set(xscale="log", ylim=(0, 1))
        else:
            axis.yaxis.set_major_locator(MaxNLocator("auto", integer=True))  # counts
        figure.tight_layout()
        save_figure(figure, out / name)

    save_figure(_summary(results, seeds), out / "summary.png")
    jct = {p: np.sort(np.concatenate([r.completion_s for r in own])) / 3600 for p, own in results.items()}
    lines(
        "jct_cdf.png",
        "",
        ("job completion time (hours)", "fraction of jobs"),
        {p: (times, np.arange(1, len(times) + 1) / len(times)) for p, times in jct.items()},
    )
    for name, label, field in (
        ("queue.png", "jobs waiting", "queue"),
        ("utilization.png", "GPUs in use", "busy"),
    ):
        points = {p: np.array(getattr(r, field)).reshape(-1, 2) for p, r in first.items()}
        lines(
            name,
            f"{label}{of_first}",
            ("time (hours)", label),
            {p: (at[:, 0] / 3600, at[:, 1]) for p, at in points.items() if len(at)},
        )
    for policy, result in first.items():
        figure = _gantt(result, gantt_filter, of_first)
        save_figure(figure, out / f"gantt-{policy.replace(':', '.')}.png")


def _styles(policies: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Ten colours with four dash styles: forty distinguishable lines."""
    from matplotlib import colormaps

    colors = colormaps["tab10"].colors  # type: ignore[attr-defined]
    dashes = ("-", "--", ":", "-.")
    return {
        policy: {"color": colors[k % 10], "linestyle": dashes[k // 10 % len(dashes)]}
        for k, policy in enumerate(policies)
    }


def _summary(results: Mapping[str, Sequence[SimulationResult]], seeds: int) -> Any:
    """Bars of mean and 99th percentile of the completion time and of the makespan, with standard errors."""
    from matplotlib.figure import Figure

    figures = {
        "mean JCT (hours)": "mean_jct_s",
        "p99 JCT (hours)": "p99_jct_s",
        "makespan (hours)": "makespan_s",
    }
    figure = Figure(figsize=(10, 1.2 + 0.32 * max(len(results), 4)))
    bodies = {policy: [r.to_json() for r in own] for policy, own in results.items()}
    for axis, (label, key) in zip(
        figure.subplots(1, len(figures), sharey=True), figures.items(), strict=True
    ):
        values = [np.array([body[key] for body in own]) / 3600 for own in bodies.values()]
        errors = [v.std(ddof=1) / np.sqrt(len(v)) if len(v) > 1 else 0.0 for v in values]
        axis.barh(
            range(len(values)),
            [v.mean() for v in values],
            xerr=errors if seeds > 1 else None,
            color="tab:blue",
            ecolor="black",
            capsize=3,
        )
        axis.set_yticks(range(len(values)), list(bodies))
        axis.set(xlabel=label)
        axis.grid(alpha=0.3, axis="x")
    if figure.axes:
        figure.axes[0].invert_yaxis()
    if seeds > 1:
        figure.suptitle(f"mean over {seeds} seeds, with standard errors", fontsize="medium")
    figure.tight_layout()
    return figure


def _gantt(result: SimulationResult, only: str, note: str) -> Any:
    from matplotlib.figure import Figure

    gpus = [number for number, name in enumerate(result.gpu_names) if only in name]
    figure = Figure(figsize=(9, 1 + 0.28 * max(min(len(gpus), MOST_GPUS), 1)))
    axis = figure.subplots()
    shown = draw_gantt(axis, result, gpus)
    kind = f" with {only!r}" if only else ""
    part = f": {shown} of {result.gpus:,} GPUs{kind}" if shown < result.gpus else ""
    axis.set_title(f"{result.policy}, jobs on each GPU{part}{note}")
    figure.tight_layout()
    return figure
