"""Seconds per atomic layer from a graph and a device type alone: the form for models that nobody has measured.

Every operator takes the larger of two times: its FLOPs at the device's rate plus its bytes at the device's bandwidth, and
its kernels at the rate at which a framework launches them. (The larger of FLOPs and bytes, as in Williams et al.,
"Roofline", CACM 2009, is a bound that training does not reach.) In fp32, wide 3x3 convolutions have the FLOPs and the bytes
of Winograd's algorithm, and a batch comes over PCIe.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from predictor.freezing.profile import owning_layers
from predictor.freezing.winograd import Winograd
from predictor.types import Floats
from profiling.devices import DeviceSpec
from profiling.errors import InputError
from profiling.graph import ComputationGraph


@dataclass(frozen=True, slots=True)
class RooflineSettings:
    """What share of a data sheet's rates training reaches, and what a framework costs.

    Attributes:
        compute_efficiency: reached share of the peak FLOP rate.
        bandwidth_efficiency: reached share of the memory bandwidth.
        launch_s: seconds from one kernel to the next when the device waits for the host.
        optimizer_launch_s: the same inside the optimiser.
        update_kernels: kernels that update one tensor of parameters where the optimiser goes tensor by tensor (about 4
            for SGD with momentum and weight decay, 12 for AdamW); 0: it handles all tensors at once, as captured.
        gradient_bytes_per_s: rate at which hooks on gradients (statistics, copies) read parameters' bytes.
        step_overhead_s: seconds per step that depend on nothing else.
        sample_overhead_s: seconds per sample outside the device (input pipeline).
    """

    compute_efficiency: float = 0.85
    bandwidth_efficiency: float = 0.75
    launch_s: float = 8e-6
    optimizer_launch_s: float = 8e-6
    update_kernels: float = 0.0
    gradient_bytes_per_s: float = float("inf")
    step_overhead_s: float = 1e-3
    sample_overhead_s: float = 0.0

    def __post_init__(self) -> None:
        for f in fields(self):
            value, top = getattr(self, f.name), 1.5 if f.name.endswith("efficiency") else np.inf
            least_ok = value > 0 if f.name.endswith(("efficiency", "per_s")) else value >= 0
            if not (least_ok and value <= top):
                raise InputError(f"{f.name} is out of range", expected=f"a number up to {top}", got=value)


@dataclass(frozen=True, eq=False)
class LayerTimes:
    """Seconds of one step on one GPU by atomic layer. L layers.

    Attributes:
        forward_s, backward_s: [L]; `backward_s` holds the gradients of weights and of inputs.
        input_gradient_s: [L] the part of `backward_s` that the first unfrozen layer does without.
        optimizer_s: [L] update of the layer's own parameters.
        overhead_s: the rest of the step.
        parameter_bytes: [L].
        boundary_bytes: [L] output of layer l for the whole batch: what an activation cache holds.
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
        """Seconds of input and forward, backward, optimiser, and the rest, with `frozen_prefix` layers frozen."""
        k = frozen_prefix
        forward = float(self.forward_s.sum())
        if cache_bytes_per_s is not None and k > 0:
            forward = float(self.forward_s[k:].sum() + self.boundary_bytes[k - 1] / cache_bytes_per_s)
        backward = float(self.backward_s[k:].sum() - (self.input_gradient_s[k] if k < self.layers else 0.0))
        return forward, backward, float(self.optimizer_s[k:].sum()), self.overhead_s


def layer_times(
    graph: ComputationGraph,
    device: DeviceSpec,
    precision: str = "fp32",
    settings: RooflineSettings | None = None,
) -> LayerTimes:
    """Time the layers of an unfrozen graph. Raises `InputError` where it names no layers."""
    settings = settings or RooflineSettings()
    if not graph.layers:
        raise InputError(
            f"graph {graph.name!r} names no atomic layers", expected="a graph captured from a torch.nn model"
        )
    count = len(graph.layers)
    forward, backward, gradient, parameters, boundary = (np.zeros(count) for _ in range(5))
    rate_tensor = device.peak_flops(precision) * settings.compute_efficiency
    rate_plain = device.fp32_flops * settings.compute_efficiency
    bandwidth = device.memory_bandwidth_bytes_per_s * settings.bandwidth_efficiency
    headed: set[int] = set()
    winograd = Winograd.of(graph)
    # Tensor cores go without it.
    transformed = winograd.used() & (precision == "fp32")
    for index, (op, layer) in enumerate(zip(graph.operators, owning_layers(graph), strict=True)):
        rate = rate_tensor if op.tensor_core else rate_plain
        fewer, tiles = 1.0, 0.0
        if transformed[index] and op.forward_flops > 0:
            fewer, tiles = (
                min(winograd.flops[index] / op.forward_flops, 1.0),
                float(winograd.tile_bytes[index]),
            )
        work = op.forward_flops + op.backward_flops
        kernels = op.kernel_count * settings.launch_s
        ahead = op.forward_flops / work if work > 0 else 0.4
        # Transformed tiles are written once and read once, in each of the three products.
        moved = op.bytes_read + op.bytes_written + 2.0 * tiles
        returned = op.backward_bytes + 4.0 * tiles
        forward[layer] += op.repeat * max(
            fewer * op.forward_flops / rate + moved / bandwidth, kernels * ahead
        )
        back = op.repeat * max(fewer * op.backward_flops / rate + returned / bandwidth, kernels * (1 - ahead))
        backward[layer] += back
        if layer not in headed and op.parameter_bytes > 0:
            # Weight and input gradients of a matrix product or a convolution cost the same.
            gradient[layer] = 0.5 * back
            headed.add(layer)
        parameters[layer] += op.parameter_bytes * op.repeat
        if op.bytes_written:
            boundary[layer] = op.bytes_written
    share = parameters / max(parameters.sum(), 1e-300)
    held = parameters > 0
    # A layer holds about two tensors: weight and bias, or scale and shift.
    each = 2.0 * settings.update_kernels or graph.optimizer_kernels / max(int(held.sum()), 1)
    updates = each * held
    optimizer = np.maximum(graph.optimizer_bytes * share / bandwidth, updates * settings.optimizer_launch_s)
    optimizer += parameters / settings.gradient_bytes_per_s
    overhead = settings.step_overhead_s + settings.sample_overhead_s * graph.batch_size
    if device.name != "cpu":
        overhead += graph.host_input_bytes / device.pcie_bytes_per_s
    return LayerTimes(forward, backward, gradient, optimizer, overhead, parameters, boundary)
