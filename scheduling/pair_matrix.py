"""Slowdowns of all pairs of some jobs on a device, as a matrix and a heat map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import numpy as np

from predictor.types import Bools, Floats, SetPredictor
from profiling.devices import canonical
from profiling.errors import InputError
from profiling.figures import save_figure
from profiling.spelling import short_hashes
from profiling.workload import ColocationSet, Workload


@dataclass(frozen=True, slots=True)
class PairMatrix:
    """Predictions of all pairs.

    Attributes:
        device, sharing: where they run.
        jobs: N jobs.
        names: labels; if empty, the SPECs are used, in which a custom model is `graph:` and a hash.
        slowdown: [N, N] of the row's job beside the column's job.
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
    """Predict every pair in one call, including a job beside a copy of itself.

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
    return PairMatrix(canonical(device), sharing, tuple(jobs), slowdown, fits, tuple(names))


_WRITTEN_OUT = 24  # most jobs for which slowdowns are written in the cells


def draw_matrix(matrix: PairMatrix) -> Any:
    """A matplotlib figure: rows are slowed by columns; pairs that do not fit are hatched.

    Many jobs have small cells without numbers, names above as well as below, and a line after every fifth.
    """
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    count = len(matrix.labels)
    written_out = count <= _WRITTEN_OUT
    labels = map(short_hashes, matrix.labels)
    names = [label.replace(":", "\n") if written_out else label for label in labels]
    size = max(4.0, (0.42 if written_out else 0.17) * count + 2.5)
    figure = Figure(figsize=(size + 1.2, size), layout="constrained")
    axis = figure.subplots()
    possible = matrix.slowdown[matrix.fits]
    most = max(2.0, float(possible.max()) if possible.size else 2.0)
    # Logarithmic: the step from 1 to 2 is as large as that from 2 to 4.
    image = axis.imshow(matrix.slowdown, cmap="viridis_r", norm=LogNorm(1.0, most))
    axis.set_xticks(range(count), names, rotation=90, fontsize=7)
    axis.set_yticks(range(count), names, fontsize=7)
    axis.set(xlabel="beside", ylabel="job", title=f"Predicted slowdown on {matrix.device}, {matrix.sharing}")
    if not written_out:
        axis.tick_params(labeltop=True, labelright=True, top=True, right=True)
        axis.tick_params(axis="x", labelrotation=90)
        lines = [number - 0.5 for number in range(5, count, 5)]
        axis.hlines(lines, -0.5, count - 0.5, color="white", linewidth=0.8)
        axis.vlines(lines, -0.5, count - 0.5, color="white", linewidth=0.8)
    for row in range(count):
        for column in range(count):
            value = matrix.slowdown[row, column]
            if not matrix.fits[row, column]:
                corner = (column - 0.5, row - 0.5)
                axis.add_patch(Rectangle(corner, 1, 1, fc="0.9", ec="0.4", hatch="///", lw=0))
            elif written_out:
                color = "white" if value > most**0.5 else "black"
                axis.text(column, row, f"{value:.1f}", ha="center", va="center", fontsize=6, color=color)
    bar = figure.colorbar(image, ax=axis, label="slowdown", shrink=0.8)
    steps = [1.0, 1.1, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0, 20.0, 50.0]
    shown = [step for step in steps if step <= most]
    bar.set_ticks(shown, labels=[f"{step:g}" for step in shown])
    bar.minorticks_off()
    if not matrix.fits.all():
        axis.set_xlabel("beside (hatched: the pair does not fit in memory)")
    return figure


def write_matrix(matrix: PairMatrix, path: Path) -> Path:
    """Write the heat map as SVG, PNG or PDF. Raises `InputError` for another suffix."""
    return save_figure(draw_matrix(matrix), path)
