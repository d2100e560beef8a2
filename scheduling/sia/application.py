"""A measured application: step times by GPU type, placement and batch.

Progress and gradient statistics by epoch.

Read from an application's folder of the public traces (`placements-<suffix>.csv`, `scalability-<suffix>.csv`,
`validation-<batch>.csv`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from profiling.errors import InputError
from profiling.files import check_once, csv_header
from scheduling.sia.goodput import BatchLimits

if TYPE_CHECKING:
    import pandas as pd

_TIMES = ("local_bsz", "step_time", "sync_time")
_FROM_0 = ("sync_time", "grad_sqr", "grad_var")
# Epochs of a full run, seconds of a checkpoint-restart, and how much slower the real cluster was than the
# traces.
EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50, "gpt_pmp": 2}
RESTART_S = {
    "bert": 120.0,
    "cifar10": 50.0,
    "ncf": 15.0,
    "imagenet": 250.0,
    "deepspeech2": 25.0,
    "yolov3": 80.0,
}
PENALTY_S = {"bert": 120.0, "cifar10": 30.0, "imagenet": 250.0, "deepspeech2": 25.0, "yolov3": 45.0}
CALIBRATION = {"cifar10": 1.8, "imagenet": 1.2, "yolov3": 1.2, "bert": 1.2, "deepspeech2": 1.2, "ncf": 1.5}
# Device types of the catalogue, and the suffixes of their files.
SUFFIX = {"t4": "aws", "rtx-2080-ti": "rtx", "a100": "dgx-ext", "quadro-rtx-6000": "quad"}
# Stages of a pipeline replica of a hybrid-parallel job, by type; micro-batches per replica and step.
STAGES = {"gpt_pmp": {"rtx-2080-ti": 8, "a100": 2}}
MICROBATCHES = 48


class Measured:
    """Step times of one application on one GPU type."""

    def __init__(self, folder: Path, device: str) -> None:
        self.device = device
        self.stages = STAGES.get(folder.name, {}).get(device, 1)
        frame = _table(folder / f"placements-{SUFFIX[device]}.csv", "placement", *_TIMES)
        more = _table(folder / f"scalability-{SUFFIX[device]}.csv", "num_nodes", "num_replicas", *_TIMES)
        frame["num_nodes"] = frame.placement.str.len()
        frame["num_replicas"] = frame.placement.map(lambda p: sum(map(int, p)))
        self.frame, self.more = frame, more
        self.local_least, self.local_largest = int(frame.local_bsz.min()), int(frame.local_bsz.max())
        if folder.name == "deepspeech2" and device == "rtx-2080-ti":
            self.local_largest = 57  # larger ones do not fit its 11 GB
        self._curves = {
            name: (g.local_bsz.to_numpy(float), g.step_time.to_numpy(float), g.sync_time.to_numpy(float))
            for name, g in frame.sort_values("local_bsz").groupby("placement")
        }
        self._most_of_replicas = frame.groupby("num_replicas").local_bsz.max().to_dict()
        self._memo: dict[tuple[tuple[int, ...], int], tuple[float, float]] = {}

    @cached_property
    def single_samples_per_s(self) -> float:
        """Samples per second at the smallest number of GPUs, from which ratios between types are computed."""
        rows = self.frame[self.frame.num_replicas == self.stages]
        return float(rows.local_bsz.max() / rows.step_time.max())

    @cached_property
    def _interpolator(self) -> Any:
        from scipy.interpolate import LinearNDInterpolator

        keys = ["num_nodes", "num_replicas", "local_bsz"]
        both = np.vstack(
            [
                self.frame.groupby(keys, as_index=False)[["step_time", "sync_time"]].mean().to_numpy(float),
                self.more[[*keys, "step_time", "sync_time"]].to_numpy(float),
            ]
        )
        return LinearNDInterpolator(both[:, :3], both[:, 3:])

    def times_s(self, placement: tuple[int, ...], local_batch: int) -> tuple[float, float]:
        """Step and exposed synchronisation seconds for GPUs per node `placement`, linear between batches."""
        key = (placement, local_batch)
        if key not in self._memo:
            self._memo[key] = self._times_s(placement, local_batch)
        return self._memo[key]

    def _times_s(self, placement: tuple[int, ...], local_batch: int) -> tuple[float, float]:
        curve = self._curves.get(_name(placement))
        if self.stages > 1:
            if curve is None:
                raise InputError(
                    f"no step time of a pipeline of {self.stages} stages on {self.device}",
                    expected=", ".join(sorted(n for n in map(str, self._curves) if len(n) == 1))
                    + " GPUs of a node, or nodes of 8",
                    got=" + ".join(map(str, placement)),
                )
            forward = float(np.interp(1, curve[0], curve[1]))
            compute = 3.0 * (self.stages - 1 + MICROBATCHES) * forward
            return compute + float(np.interp(1, curve[0], curve[2])), float(np.interp(1, curve[0], curve[2]))
        if curve is not None:
            return float(np.interp(local_batch, curve[0], curve[1])), float(
                np.interp(local_batch, curve[0], curve[2])
            )
        step, sync = self._interpolator([[min(len(placement), 16), sum(placement), local_batch]])[0]
        if not np.isfinite(step):
            raise InputError(
                f"no step time on {self.device}",
                expected="a measured range",
                got=f"{placement}, {local_batch}",
            )
        return float(step), float(sync)

    def largest_batch(self, placement: tuple[int, ...]) -> int:
        """Largest number of samples per GPU measured for this placement."""
        curve = self._curves.get(_name(placement))
        if curve is not None:
            return int(curve[0].max())
        wide = self.more[(self.more.num_nodes >= len(placement)) & (self.more.num_replicas >= sum(placement))]
        return int(wide.local_bsz.max()) if len(wide) else self.local_largest

    def largest_of_replicas(self, replicas: int) -> int | None:
        """Largest number of samples per GPU measured with this many GPUs."""
        largest = self._most_of_replicas.get(replicas)
        return None if largest is None else int(largest)


class Application:
    """One application with its types."""

    def __init__(self, folder: Path, devices: Mapping[str, Measured]) -> None:
        self.name = folder.name
        self.on = dict(devices)
        paths = {p.stem.partition("-")[2]: p for p in folder.glob("validation-*.csv")}
        tables = {
            int(b): _table(p, "progress", "grad_sqr", "grad_var") for b, p in paths.items() if b.isdecimal()
        }
        if not tables:
            raise InputError(f"{folder} has no validation-<batch>.csv", expected="progress by epoch")
        self.batches = sorted(tables)
        frames = [tables[b] for b in self.batches]
        rows = min(len(f) for f in frames)
        self.max_epochs = EPOCHS.get(self.name, rows)
        if rows < self.max_epochs:
            raise InputError(
                f"{folder} has too few rows in a validation-<batch>.csv",
                expected=f"one for each of {self.max_epochs} epochs",
                got=rows,
            )
        self._progress = np.min([f.progress.to_numpy(float)[:rows] for f in frames], axis=0)
        self._sqr = np.array([f.grad_sqr.to_numpy(float)[:rows] for f in frames])
        self._var = np.array([f.grad_var.to_numpy(float)[:rows] for f in frames])

    @property
    def restart_s(self) -> float:
        return RESTART_S.get(self.name, 30.0)

    @property
    def penalty_s(self) -> float:
        """Restart cost as counted by the policy."""
        return PENALTY_S.get(self.name, 30.0)

    def limits(self, device: str) -> BatchLimits:
        on = self.on[device]
        return BatchLimits(self.batches[0], self.batches[-1], on.local_least, on.local_largest)

    def initial_step_s(self, device: str) -> float:
        """Seconds of a step of the initial batch on one GPU, which accumulates if it has too little memory."""
        on, initial = self.on[device], self.batches[0]
        passes = math.ceil(initial / on.largest_batch((1,)))
        step, sync = on.times_s((1,), math.ceil(initial / passes))
        return step + (step - sync) * (passes - 1)

    def progress(self, epoch: int) -> float:
        """Progress (steps of the initial batch) after `epoch` epochs."""
        return 0.0 if epoch == 0 else float(self._progress[epoch - 1])

    def gradient(self, batch: int, epoch: int) -> tuple[float, float]:
        """Squared norm and variance of the gradient in an epoch, linear between measured batches."""
        epoch = min(epoch, self._sqr.shape[1] - 1)
        where = min(max(batch, self.batches[0]), self.batches[-1])
        return (
            float(np.interp(where, self.batches, self._sqr[:, epoch])),
            float(np.interp(where, self.batches, self._var[:, epoch])),
        )


def load_applications(folder: Path, devices: list[str]) -> dict[str, Application]:
    """Load every application of a `traces` folder on those of `devices` with measurements.

    Raises:
        InputError: the folder is not one.
    """
    if not folder.is_dir():
        raise InputError(f"no folder {folder}", expected="the traces of a clone of upstream")
    applications = {}
    for path in sorted(p for p in folder.iterdir() if p.is_dir()):
        on = {
            d: Measured(path, d)
            for d in devices
            if d in SUFFIX and (path / f"placements-{SUFFIX[d]}.csv").exists()
        }
        if on:
            applications[path.name] = Application(path, on)
    if not applications:
        raise InputError(
            f"{folder} has no application for {', '.join(devices)}", expected="placements-<type>.csv"
        )
    return applications


def _table(path: Path, *columns: str) -> pd.DataFrame:
    """A measured table. Raises `InputError` if it lacks a column or a cell of one is not what the column holds."""
    import pandas as pd

    try:
        header, source = csv_header(path)
        frame = pd.read_csv(source, dtype={"placement": str})
    except (OSError, ValueError) as error:  # pandas' own are of the latter
        raise InputError(
            f"{path} is not a measured table", expected="a CSV with " + ", ".join(columns), got=str(error)
        ) from None
    check_once(path, header)
    missing = [column for column in columns if column not in frame]
    if missing or frame.empty:
        raise InputError(
            f"{path} is not a measured table",
            expected="rows with " + ", ".join(columns),
            got="no " + (", ".join(missing) or "rows"),
        )
    for column in columns:
        if column == "placement":
            expected, sound = "a digit per node", frame[column].str.fullmatch("[1-9]+").fillna(False)
        else:
            numbers = pd.to_numeric(frame[column], errors="coerce")
            may_be_0 = column in _FROM_0
            expected = "a number from 0" if may_be_0 else "a number above 0"
            sound = ((numbers > 0) | (numbers.eq(0) & may_be_0)) & (numbers < np.inf)
        if not sound.all():
            row = int(np.argmin(sound.to_numpy(bool)))
            raise InputError(
                f"{path}, line {row + 2}: {column}", expected=expected, got=str(frame[column].iloc[row])
            )
    return frame


def _name(placement: tuple[int, ...]) -> str:
    """Name of a placement in the files: its lexicographically smallest rotation."""
    return "".join(map(str, min(placement[i:] + placement[:i] for i in range(len(placement)))))
