"""Learn what a framework costs on a device from measured models, to predict models that nobody has measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from predictor.layers.fit import Rows
from predictor.layers.roofline import RooflineSettings, layer_times
from predictor.types import Floats
from profiling.devices import DeviceSpec
from profiling.errors import InputError
from profiling.graph import ComputationGraph

# What is learnt, where it starts, and how far (in e-folds) it goes willingly.
START = RooflineSettings(optimizer_launch_s=2e-5, gradient_bytes_per_s=2e10, sample_overhead_s=1e-5)
LEARNT = {
    "compute_efficiency": 0.3,
    "bandwidth_efficiency": 0.3,
    "launch_s": 0.7,
    "optimizer_launch_s": 1.0,
    "gradient_bytes_per_s": 1.0,
    "step_overhead_s": 1.5,
    "sample_overhead_s": 1.5,
}
PRIOR_WEIGHT = 0.05


@dataclass(frozen=True, eq=False)
class MeasuredGraph:
    """Rows of one model on one GPU at one batch size, with the graph of its unfrozen step at that batch size."""

    graph: ComputationGraph
    rows: Rows
    update_kernels: float
    precision: str = "fp32"


def predicted_s(measured: MeasuredGraph, device: DeviceSpec, settings: RooflineSettings) -> Floats:
    """[N] step times of the rows, from the graph alone."""
    own = replace(settings, update_kernels=measured.update_kernels)
    times = layer_times(measured.graph, device, measured.precision, own)
    return np.array([sum(times.split(int(k))) for k in measured.rows.frozen_prefix])


def calibrate(measured: Sequence[MeasuredGraph], device: DeviceSpec) -> RooflineSettings:
    """Settings that explain measured step times, held near their start by a Gaussian prior on their logarithms.

    Raises:
        InputError: nothing was measured.
    """
    from scipy.optimize import least_squares

    if not measured:
        raise InputError("nothing to calibrate with", expected="at least one measured graph", got="none")
    count = sum(len(one.rows) for one in measured)
    start = np.log([getattr(START, name) for name in LEARNT])
    width = np.array(list(LEARNT.values()))

    def settings(theta: Floats) -> RooflineSettings:
        values = dict(zip(LEARNT, np.exp(theta).tolist(), strict=True))
        for name in ("compute_efficiency", "bandwidth_efficiency"):
            values[name] = min(values[name], 1.5)
        return replace(START, **values)

    def residual(theta: Floats) -> Floats:
        made = settings(theta)
        errors = [predicted_s(one, device, made) / one.rows.step_time_s - 1.0 for one in measured]
        return np.concatenate([*errors, PRIOR_WEIGHT * np.sqrt(count) * (theta - start) / width])

    return settings(least_squares(residual, start, diff_step=np.full(len(start), 1e-3), max_nfev=15).x)
