"""Fit a framework's overheads on a device to measured models, to predict models without measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from benchmarks.layer_fits.fit import Rows
from models.cost import JobCost, default_cost_model
from predictor.freezing.layer_times import FrameworkCosts, layer_times
from predictor.types import Floats
from profiling.devices import DeviceSpec
from profiling.errors import InputError
from profiling.graph import ComputationGraph
from profiling.workload import Workload

# Fitted parameters: initial values, and standard deviations of their prior in e-folds.
START = FrameworkCosts(
    optimizer_launch_s=2e-5, gradient_bytes_per_s=2e10, step_overhead_s=1e-2, sample_overhead_s=1e-5
)
LEARNT = {
    "device_factor": 0.3,
    "launch_s": 0.7,
    "optimizer_launch_s": 1.0,
    "gradient_bytes_per_s": 1.0,
    "step_overhead_s": 1.5,
    "sample_overhead_s": 1.5,
}
PRIOR_WEIGHTS = (0.05, 0.02, 0.01, 0.003)


@dataclass(frozen=True, eq=False)
class MeasuredGraph:
    """Rows of one model on one GPU at one batch size, with the graph of its unfrozen step at that size."""

    graph: ComputationGraph
    rows: Rows
    update_kernels: float
    precision: str = "fp32"

    @property
    def workload(self) -> Workload:
        return Workload(self.graph.name, precision=self.precision)

    def cost(self, device: DeviceSpec) -> JobCost:
        """Cost by the shipped cost model, computed once per device."""
        if device.name not in self._costs:
            self._costs[device.name] = default_cost_model().cost(self.graph, device, self.workload)
        return self._costs[device.name]

    @cached_property
    def _costs(self) -> dict[str, JobCost]:
        return {}


def predicted_s(measured: MeasuredGraph, device: DeviceSpec, costs: FrameworkCosts) -> Floats:
    """[N] step times of the rows, from the graph alone."""
    own = replace(costs, update_kernels=measured.update_kernels)
    times = layer_times(measured.graph, device, measured.workload, own, measured.cost(device))
    return np.array([sum(times.split(int(k))) for k in measured.rows.frozen_prefix])


def calibrate(measured: Sequence[MeasuredGraph], device: DeviceSpec) -> FrameworkCosts:
    """Fit the framework's overheads to step times, with a Gaussian prior on their logarithms around the
    start.

    With at least three graphs, the strength of the prior is chosen by leaving out one graph at a time.

    Raises:
        InputError: no measurements.
    """
    if not measured:
        raise InputError("nothing to calibrate with", expected="at least one measured graph", got="none")
    weight = PRIOR_WEIGHTS[0]
    if len(measured) > 2:
        weight = min(PRIOR_WEIGHTS, key=lambda w: _left_out_error(measured, device, w))
    return _fit(measured, device, weight)


def _left_out_error(measured: Sequence[MeasuredGraph], device: DeviceSpec, weight: float) -> float:
    """Mean absolute relative error on left-out graphs."""
    errors = []
    for out, model in enumerate(measured):
        costs = _fit([*measured[:out], *measured[out + 1 :]], device, weight)
        errors.append(np.abs(predicted_s(model, device, costs) / model.rows.step_time_s - 1.0))
    return float(np.concatenate(errors).mean())


def _fit(measured: Sequence[MeasuredGraph], device: DeviceSpec, weight: float) -> FrameworkCosts:
    from scipy.optimize import least_squares

    count = sum(len(model.rows) for model in measured)
    start = np.log([getattr(START, name) for name in LEARNT])
    width = np.array(list(LEARNT.values()))

    def costs(theta: Floats) -> FrameworkCosts:
        return replace(START, **dict(zip(LEARNT, np.exp(theta).tolist(), strict=True)))

    def residual(theta: Floats) -> Floats:
        made = costs(theta)
        errors = [predicted_s(model, device, made) / model.rows.step_time_s - 1.0 for model in measured]
        return np.concatenate([*errors, weight * np.sqrt(count) * (theta - start) / width])

    return costs(least_squares(residual, start, diff_step=np.full(len(start), 1e-3), max_nfev=15).x)
