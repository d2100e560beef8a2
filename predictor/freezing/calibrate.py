"""Learn what a framework costs on a device from measured models, to predict models that nobody has measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from predictor.freezing.fit import Rows
from predictor.freezing.roofline import RooflineSettings, layer_times
from predictor.types import Floats
from profiling.devices import DeviceSpec
from profiling.errors import InputError
from profiling.graph import ComputationGraph

# What is learnt, where it starts, and how far (in e-folds) it goes willingly.
START = RooflineSettings(
    optimizer_launch_s=2e-5, gradient_bytes_per_s=2e10, step_overhead_s=1e-2, sample_overhead_s=1e-5
)
LEARNT = {
    "compute_efficiency": 0.3,
    "bandwidth_efficiency": 0.3,
    "launch_s": 0.7,
    "optimizer_launch_s": 1.0,
    "gradient_bytes_per_s": 1.0,
    "step_overhead_s": 1.5,
    "sample_overhead_s": 1.5,
}
PRIOR_WEIGHTS = (0.05, 0.02, 0.01, 0.003)


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

    How firmly is decided by leaving out one graph after the other, where there are three.

    Raises:
        InputError: nothing was measured.
    """
    if not measured:
        raise InputError("nothing to calibrate with", expected="at least one measured graph", got="none")
    weight = PRIOR_WEIGHTS[0]
    if len(measured) > 2:
        weight = min(PRIOR_WEIGHTS, key=lambda w: _left_out_error(measured, device, w))
    return _fit(measured, device, weight)


def _left_out_error(measured: Sequence[MeasuredGraph], device: DeviceSpec, weight: float) -> float:
    """Mean absolute relative error on graphs that the fit has not seen."""
    errors = []
    for out, one in enumerate(measured):
        settings = _fit([*measured[:out], *measured[out + 1 :]], device, weight)
        errors.append(np.abs(predicted_s(one, device, settings) / one.rows.step_time_s - 1.0))
    return float(np.concatenate(errors).mean())


def _fit(measured: Sequence[MeasuredGraph], device: DeviceSpec, weight: float) -> RooflineSettings:
    from scipy.optimize import least_squares

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
        return np.concatenate([*errors, weight * np.sqrt(count) * (theta - start) / width])

    return settings(least_squares(residual, start, diff_step=np.full(len(start), 1e-3), max_nfev=15).x)
