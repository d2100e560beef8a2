"""Rooflines (Williams et al., CACM 2009): the longer of compute time and transfer time by the data sheet."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from datasets.bundle import Bundle, Floats
from models.baselines.columns import group_names
from profiling.devices import get_device
from profiling.errors import InputError, UnknownNameError

# Bytes per element in memory; autocast keeps activations in half precision.
ELEMENT_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "amp": 2, "fp16": 2, "bf16": 2, "fp8": 2}


def peaks(rows: pd.DataFrame) -> tuple[Floats, Floats]:
    """[n] FLOP/s at each row's precision, and [n] bytes/s of its device.

    NaN for a device outside the catalogue, or without that precision.
    """
    pairs = list(zip(rows["device"], rows["precision"], strict=True))
    peaks = {}
    for device, precision in set(pairs):
        try:
            spec = get_device(device)
            peaks[device, precision] = (spec.peak_flops(precision), spec.memory_bandwidth_bytes_per_s)
        except (InputError, UnknownNameError):
            peaks[device, precision] = (np.nan, np.nan)
    both = np.array([peaks[pair] for pair in pairs], dtype=np.float64).reshape(-1, 2)
    return np.where(both[:, 0] > 0, both[:, 0], np.nan), both[:, 1]


class RooflinePredictor:
    """The roofline of a whole step, times the median of measured / roofline in training, by mode.

    Args:
        seconds: [n] the roofline of each row of a bundle; NaN if unknown.
    """

    def __init__(self, seconds: Callable[[Bundle], Floats]) -> None:
        self.seconds = seconds

    def fit(self, train: Bundle, seed: int = 0) -> RooflinePredictor:  # noqa: ARG002
        """Learn one factor per mode; `seed` is not used.

        Raises:
            InputError: no measured row has a known roofline.
        """
        ratio = train.y / self.seconds(train)
        usable = train.points & np.isfinite(ratio)
        if not usable.any():
            raise InputError(
                "nothing to learn from",
                expected="rows with known totals on devices of the catalogue",
                got="none",
            )
        modes = group_names(train.rows, ("mode",))
        self.factor_ = {"": float(np.median(ratio[usable]))}
        for mode in np.unique(modes[usable].astype(str)):
            self.factor_[mode] = float(np.median(ratio[usable & (modes == mode)]))
        return self

    def predict(self, test: Bundle) -> Floats:
        """[n] for `test.rows`; NaN if the roofline is unknown."""
        modes = group_names(test.rows, ("mode",))
        factor = np.array([self.factor_.get(str(mode), self.factor_[""]) for mode in modes])
        return self.seconds(test) * factor


def roofline_of_totals(rows: pd.DataFrame, totals: pd.DataFrame) -> Floats:
    """[n] seconds of a step, from its totals alone.

    A training step computes three times as much as a forward pass, and moves its activations as often.

    Args:
        rows: with device, precision and mode.
        totals: `macs`, `activations` and `parameters` of a batch.
    """
    flops, bandwidth = peaks(rows)
    passes = np.where(rows["mode"] == "training", 3.0, 1.0)
    size = rows["precision"].map(ELEMENT_BYTES).to_numpy(dtype=np.float64)
    macs, activations, parameters = (
        totals[name].to_numpy(dtype=np.float64) for name in ("macs", "activations", "parameters")
    )
    moved = passes * size * (2 * activations + parameters)
    seconds: Floats = np.maximum(2 * passes * macs / flops, moved / bandwidth)
    return np.where(seconds > 0, seconds, np.nan)
