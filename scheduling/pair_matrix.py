"""How every pair of some jobs shares a device: slowdowns as a matrix, and as a heat map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import numpy as np

from predictor.types import Bools, Floats, SetPredictor
from profiling.errors import InputError
from profiling.workload import ColocationSet, Workload


@dataclass(frozen=True, slots=True)
class PairMatrix:
    """Predictions of all pairs.

    Attributes:
        device, sharing: where.
        jobs: N of them.
        names: what to call them; their SPECs, where a model of one's own is `graph:` and a hash, if empty.
        slowdown: [N, N] of the job of the row beside the job of the column.
        fits: [N, N] whether both fit in the device's memory.
    """

    device: str
    sharing: str
    jobs: tuple[Workload, ...]
    slowdown: Floats
    fits: Bools
    names: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """One for each job."""
        return self.names or tuple(str(job) for job in self.jobs)

    def to_json(self) -> dict[str, Any]:
        """The JSON object of `cotenant matrix --json`."""
        return {
            "device": self.device,
            "sharing": self.sharing,
            "jobs": list(self.labels),
            "slowdown": self.slowdown.tolist(),
            "fits": self.fits.tolist(),
        }


def pair_matrix(
    predictor: SetPredictor,
    device: str,
    jobs: Sequence[Workload],
    sharing: str = "time-slice",
    names: Sequence[str] = (),
) -> PairMatrix:
    """Predict every pair in one call, a job beside another of its own kind included.

    Raises:
        InputError: fewer than one job.
        UnknownNameError: the device or a model is unknown.
    """
    if not jobs:
        raise InputError("a matrix needs jobs", expected="one or more", got="none")
    numbers = list(combinations_with_replacement(range(len(jobs)), 2))
    sets = [ColocationSet(device, (jobs[a], jobs[b]), sharing) for a, b in numbers]
    answer = predictor.predict_arrays(sets)
    slowdown, fits = np.ones((len(jobs), len(jobs))), np.zeros((len(jobs), len(jobs)), bool)
    for row, (a, b) in enumerate(numbers):
        slowdown[b, a], slowdown[a, b] = answer.slowdown[row, 1], answer.slowdown[row, 0]
        fits[a, b] = fits[b, a] = answer.fits[row]
    return PairMatrix(device, sharing, tuple(jobs), slowdown, fits, tuple(names))


def draw_matrix(matrix: PairMatrix) -> Any:
    """A matplotlib figure: rows are slowed by columns; pairs that do not fit are hatched."""
    from matplotlib.figure import Figure

    names = [label.replace(":", "\n") for label in matrix.labels]
    size = max(4.0, 0.42 * len(names) + 2.5)
    figure = Figure(figsize=(size + 1.2, size))
    axis = figure.subplots()
    image = axis.imshow(matrix.slowdown, cmap="viridis_r", vmin=1.0, vmax=max(2.0, matrix.slowdown.max()))
    axis.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axis.set_yticks(range(len(names)), names, fontsize=7)
    axis.set(xlabel="beside", ylabel="job", title=f"Predicted slowdown on {matrix.device}, {matrix.sharing}")
    middle = (1.0 + matrix.slowdown.max()) / 2
    for row in range(len(names)):
        for column in range(len(names)):
            value = matrix.slowdown[row, column]
            if not matrix.fits[row, column]:
                axis.add_patch(_hatched(row, column))
            elif len(names) <= 24:
                color = "white" if value > middle else "black"
                axis.text(column, row, f"{value:.1f}", ha="center", va="center", fontsize=6, color=color)
    figure.colorbar(image, ax=axis, label="slowdown", shrink=0.8)
    if not matrix.fits.all():
        figure.text(0.01, 0.01, "hatched: the pair does not fit in memory", fontsize=7)
    figure.tight_layout()
    return figure


def _hatched(row: int, column: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(
        (column - 0.5, row - 0.5), 1, 1, facecolor="0.9", edgecolor="0.4", hatch="///", linewidth=0
    )


def write_matrix(matrix: PairMatrix, path: Path) -> Path:
    """Write the heat map as SVG, PNG or PDF. Raises `InputError` for another suffix."""
    from scheduling.simulator.plots import check_plot_format, save_figure

    check_plot_format(path)
    return save_figure(draw_matrix(matrix), path)
