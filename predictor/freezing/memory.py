"""Peak memory of a training process against its frozen prefix."""

from __future__ import annotations

import numpy as np

from predictor.freezing.memory_shape import border_bytes
from predictor.freezing.profile import owning_layers
from profiling.devices import DeviceSpec
from profiling.graph import ComputationGraph

CONTEXT_BYTES = 500e6


def frozen_memory_bytes(
    graph: ComputationGraph, frozen_prefix: int, device: DeviceSpec | None = None
) -> float:
    """Bytes that the process takes on the device with `frozen_prefix` layers frozen, context included.

    Parameters of all layers; gradients and optimiser state of unfrozen ones; what the unfrozen layers keep for the
    backward pass, or the largest tensors that live at once inside the frozen prefix. Scales with the graph's own count of
    live activations. Non-increasing in k. `device` decides whether there is a context at all (a CPU has none).
    """
    context = 0.0 if device is not None and device.name == "cpu" else CONTEXT_BYTES
    return context + float(tensor_bytes(graph)[frozen_prefix])


def tensor_bytes(graph: ComputationGraph) -> np.ndarray:
    """[L + 1] peak bytes of tensors for frozen prefixes 0..L."""
    count = max(len(graph.layers), 1)
    saved, parameters, transient = (np.zeros(count) for _ in range(3))
    for op, layer in zip(graph.operators, owning_layers(graph), strict=True):
        saved[layer] += op.saved_activation_bytes * op.repeat
        parameters[layer] += op.parameter_bytes * op.repeat
        transient[layer] = max(transient[layer], op.bytes_read - op.parameter_bytes + op.bytes_written)
    trained = np.append(np.cumsum(parameters[::-1])[::-1], 0.0) / max(parameters.sum(), 1e-300)
    each = np.array([min(op.saved_activation_bytes, op.bytes_written) for op in graph.operators])
    kept = np.append(np.cumsum(saved[::-1])[::-1], 0.0) + border_bytes(graph, each)
    scale = graph.activation_bytes / kept[0] if kept[0] > 0 and graph.activation_bytes > 0 else 1.0
    # Frozen layers run before anything is kept, so their transients and the kept tensors do not add up.
    largest = np.append(0.0, np.maximum.accumulate(transient))
    live = np.maximum(kept * scale, np.minimum(largest, kept[0] * scale if kept[0] > 0 else largest))
    return (
        graph.parameter_bytes
        + trained * (graph.gradient_bytes + graph.optimizer_state_bytes)
        + np.maximum.accumulate(live[::-1])[::-1]
        + graph.host_input_bytes
    )
