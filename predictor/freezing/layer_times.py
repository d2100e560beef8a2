"""Seconds per atomic layer by the cost model, for models without measurements."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from models.cost import JobCost, default_cost_model
from models.cost.job import pass_mask
from predictor.types import Floats
from profiling.devices import DeviceSpec
from profiling.errors import InputError, LimitError
from profiling.graph import ComputationGraph
from profiling.workload import Workload

# Every layer looks at every operator: two seconds for this many, tens of times what large networks have.
_MOST_LOOKS = 10**8


@dataclass(frozen=True, slots=True)
class FrameworkCosts:
    """Framework overhead beyond the cost model's kernel times.

    Attributes:
        device_factor: ratio of actual kernel times to the cost model's.
        launch_s: seconds from one kernel to the next when the device waits for the host.
        optimizer_launch_s: the same inside the optimiser.
        update_kernels: kernels per parameter tensor, for an optimiser that updates tensors one by one (about
            4 for SGD with momentum and weight decay, 12 for AdamW); 0 for one that updates all at once, as
            captured.
        gradient_bytes_per_s: rate at which gradient hooks (statistics, copies) read the parameters' bytes.
        step_overhead_s: fixed seconds per step.
        sample_overhead_s: seconds per sample outside the device (input pipeline).
    """

    device_factor: float = 1.0
    launch_s: float = 8e-6
    optimizer_launch_s: float = 8e-6
    update_kernels: float = 0.0
    gradient_bytes_per_s: float = float("inf")
    step_overhead_s: float = 1e-3
    sample_overhead_s: float = 0.0

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if not (value > 0 if f.name in ("device_factor", "gradient_bytes_per_s") else value >= 0):
                raise InputError(f"{f.name} is out of range", expected="a positive number", got=value)


@dataclass(frozen=True, eq=False)
class LayerTimes:
    """Seconds of one step on one GPU, by atomic layer, for L layers.

    Attributes:
        forward_s, backward_s: [L]; `backward_s` includes the gradients of weights and of inputs.
        input_gradient_s: [L] the part of `backward_s` of layers from l on that is no longer needed if those
            before l are frozen: gradients of the inputs of the first trained operators.
        optimizer_s: [L] update of the layer's own parameters.
        overhead_s: the rest of the step.
        parameter_bytes: [L].
        boundary_bytes: [L] output of layer l for the whole batch, which an activation cache would hold.
    """

    forward_s: Floats
    backward_s: Floats
    input_gradient_s: Floats
    optimizer_s: Floats
    overhead_s: float
    parameter_bytes: Floats
    boundary_bytes: Floats

    @property
    def layers(self) -> int:
        return len(self.forward_s)

    def split(
        self, frozen_prefix: int, cache_bytes_per_s: float | None = None
    ) -> tuple[float, float, float, float]:
        """Seconds of (input and forward, backward, optimiser, the rest) with a frozen prefix."""
        k = frozen_prefix
        forward = float(self.forward_s.sum())
        if cache_bytes_per_s is not None and k > 0:
            forward = float(self.forward_s[k:].sum() + self.boundary_bytes[k - 1] / cache_bytes_per_s)
        backward = float(self.backward_s[k:].sum() - (self.input_gradient_s[k] if k < self.layers else 0.0))
        return forward, backward, float(self.optimizer_s[k:].sum()), self.overhead_s

    def trained_ratio(self, frozen_prefix: int) -> float:
        """Share of the parameters' bytes behind a frozen prefix."""
        return float(self.parameter_bytes[frozen_prefix:].sum() / max(self.parameter_bytes.sum(), 1e-300))


def layer_times(
    graph: ComputationGraph,
    device: DeviceSpec,
    workload: Workload | None = None,
    costs: FrameworkCosts = FrameworkCosts(),
    cost: JobCost | None = None,
) -> LayerTimes:
    """Time the layers of an unfrozen graph.

    Args:
        graph: the graph.
        device: the device.
        workload: gives precision, layout and mode; FP32 training by default.
        costs: framework overhead; typical values by default.
        cost: cost of the unfrozen job, if already known; by default, computed with the shipped cost model.

    Raises:
        InputError: the graph names no layers, or the device lacks the precision.
        LimitError: it has too many layers for its operators.
    """
    if not graph.layers:
        raise InputError(
            f"graph {graph.name!r} names no atomic layers", expected="a graph captured from a torch.nn model"
        )
    if len(graph.layers) * len(graph.operators) > _MOST_LOOKS:
        raise LimitError(
            f"graph {graph.name!r} has too many layers to freeze",
            expected=f"at most {_MOST_LOOKS // len(graph.operators)} for {len(graph.operators)} operators",
            got=len(graph.layers),
        )
    job = replace((workload or Workload(graph.name)).without_solo(), frozen_prefix=0)
    cost = cost or default_cost_model().cost(graph, device, job)
    columns, owner, count = graph.columns, np.array(owning_layers(graph)), len(graph.layers)
    # While the device waits for the host, a kernel takes as long as its launch.
    launching = cost.operators.kernels * costs.launch_s
    busy = np.maximum(cost.operators.busy_s * costs.device_factor, launching)
    forward, backward = (np.bincount(owner, side, count).astype(np.float64) for side in busy)
    # A step has as many parameters in several passes as in one, but as many outputs as passes.
    stored = columns["parameter_bytes"] * columns["repeat"] / graph.passes
    parameters = np.bincount(owner, stored, count).astype(np.float64)
    gradient, boundary = np.zeros(count), np.zeros(count)
    for layer in range(count):
        own = np.flatnonzero(owner == layer)
        # Backward time of the layers from here on that a cut before this layer saves.
        share = pass_mask(graph, replace(job, frozen_prefix=layer))[1]
        gradient[layer] = ((1.0 - share) * busy[1])[owner >= layer].sum()
        written = own[columns["bytes_written"][own] > 0]
        if len(written):
            boundary[layer] = columns["bytes_written"][written[-1]] * graph.passes
    updated = np.where(np.arange(count) < graph.frozen_prefix, 0.0, parameters)
    held = updated > 0
    share = updated / max(updated.sum(), 1e-300)
    # A layer holds about two tensors: weight and bias, or scale and shift.
    each = 2.0 * costs.update_kernels or graph.optimizer_kernels / max(int(held.sum()), 1)
    optimizer = np.maximum(cost.optimizer_s * share, each * held * costs.optimizer_launch_s)
    optimizer += updated / costs.gradient_bytes_per_s
    if job.mode == "inference":
        optimizer = np.zeros(count)
    overhead = costs.step_overhead_s + costs.sample_overhead_s * graph.step_samples + cost.host_s
    return LayerTimes(forward, backward, gradient, optimizer, overhead, parameters, boundary)


def owning_layers(graph: ComputationGraph) -> list[int]:
    """For each operator, the atomic layer whose freezing stops its backward pass."""
    owners, current = [], 0
    for op in graph.operators:
        current = max(current, op.layer_index)
        owners.append(current)
    return owners
