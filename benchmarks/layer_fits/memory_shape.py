"""`MemoryShape`: what is alive on the device at each operator of a training step, for every frozen prefix.

It follows a step of the graph operator by operator. Forward: an operator's inputs and output, what later
operators still need, and what Python holds (the arguments of the two innermost active modules; `bn(conv(x))`
holds x). Backward: what is kept from the first unfrozen layer up to this operator, and the gradients of its
output and inputs. Sizes are per sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.layer_fits.winograd import Winograd
from predictor.freezing.layer_times import owning_layers
from predictor.types import Floats
from profiling.graph import ComputationGraph

# Operators whose backward pass reads their input, so that the last output of the frozen layers is kept as
# well.
KEEP_INPUT = frozenset(
    {
        "convolution", "depthwise_convolution", "transposed_convolution", "linear", "matmul", "attention", "recurrent",
        "batch_norm", "layer_norm", "group_norm", "activation", "pooling",
    }
)  # fmt: skip
HELD_MODULES = 2


@dataclass(frozen=True, eq=False)
class MemoryShape:
    """Sizes of one model with L layers and N operators.

    Attributes:
        parameters: bytes.
        unfrozen_parameters: [L + 1] bytes in layers k and later.
        alive: [L + 1, N] bytes per sample at operator n in the forward or the backward pass, whichever is
            larger.
        workspace: [N] bytes per sample of a convolution's transformed tiles if it uses `winograd`.
    """

    parameters: float
    unfrozen_parameters: Floats
    alive: Floats
    workspace: Floats
    winograd: Winograd

    @classmethod
    def from_graph(cls, graph: ComputationGraph, inplace_activations: bool = True) -> MemoryShape:
        """Build from a graph.

        Args:
            inplace_activations: False if activation functions keep their input as well as their output.
        """
        owners = np.array(owning_layers(graph))
        count, samples = len(graph.layers), max(graph.batch_size, 1)
        sources = _sources(graph)
        written = np.array([op.bytes_written for op in graph.operators]) / samples
        saved = np.array([op.saved_activation_bytes * op.repeat for op in graph.operators]) / samples
        if not inplace_activations:
            saved += np.where([op.kind == "activation" for op in graph.operators], written, 0.0)
        parameters = np.zeros(count)
        for op, layer in zip(graph.operators, owners, strict=True):
            parameters[layer] += op.parameter_bytes * op.repeat
        forward = _forward(graph, sources, written, inplace_activations)
        gradients = written + [sum(written[s] for s in inputs) for inputs in sources]
        border = border_bytes(graph, np.minimum(saved, written))
        alive = np.tile(forward, (count + 1, 1))
        for k in range(count):
            unfrozen = owners >= k
            kept = np.cumsum(np.where(unfrozen, saved, 0.0)) + border[k] + gradients
            alive[k] = np.where(unfrozen, np.maximum(kept, forward), forward)
        winograd = Winograd.of(graph)
        return cls(
            float(parameters.sum()),
            np.append(np.cumsum(parameters[::-1])[::-1], 0.0),
            alive + graph.host_input_bytes / samples,
            winograd.tile_bytes / samples,
            winograd,
        )

    def activation_bytes(
        self, frozen_prefix: NDArray[np.int64], batch_size: Floats, winograd_channels: float
    ) -> Floats:
        """[M] peak bytes of activations, their gradients and workspace, for M prefixes and batch sizes.

        Args:
            winograd_channels: convolutions with fewer channels have no workspace.
        """
        used = self.winograd.used(winograd_channels)
        slope = self.alive[frozen_prefix] + np.where(used, self.workspace, 0.0)
        return (batch_size[:, None] * slope + np.where(used, self.winograd.weight_bytes, 0.0)).max(axis=1)


def _sources(graph: ComputationGraph) -> list[list[int]]:
    sources: list[list[int]] = [[] for _ in graph.operators]
    for edge in graph.edges:
        sources[edge.target].append(edge.source)
    return sources


def _forward(
    graph: ComputationGraph, sources: Sequence[Sequence[int]], written: Floats, inplace: bool
) -> Floats:
    """[N] bytes per sample alive at each operator if nothing is kept for a backward pass."""
    last = np.arange(len(graph.operators))
    for edge in graph.edges:
        last[edge.source] = max(last[edge.source], edge.target)
    arguments: dict[
        str, list[int]
    ] = {}  # the first input of each module's first operator; none for the batch itself
    alive_bytes = np.zeros(len(graph.operators))
    for index, op in enumerate(graph.operators):
        inputs = sources[index]
        parts = op.module_path.split(".")
        modules = [".".join(parts[:depth]) for depth in range(1, len(parts))]
        for module in modules:
            arguments.setdefault(module, list(inputs[:1]))
        alive = {index, *inputs, *np.flatnonzero(last[:index] >= index).tolist()}
        if op.kind == "batch_norm":
            alive.update(s for source in inputs for s in sources[source])
        if op.kind == "activation" and inplace:
            alive.discard(index)
        alive.update(source for module in modules[-HELD_MODULES:] for source in arguments[module])
        alive_bytes[index] = written[sorted(alive)].sum()
    return alive_bytes


def border_bytes(graph: ComputationGraph, saved: Floats) -> Floats:
    """[L + 1] bytes that layers before k produce and layers from k on keep, from `saved` [N] of N
    operators."""
    owners = owning_layers(graph)
    last = list(owners)  # the last layer that keeps an operator's output
    for edge in graph.edges:
        if graph.operators[edge.target].kind in KEEP_INPUT:
            last[edge.source] = max(last[edge.source], owners[edge.target])
    kept_bytes = np.zeros(len(graph.layers) + 1)
    for own, kept_by, size in zip(owners, last, saved, strict=True):
        kept_bytes[own + 1 : kept_by + 1] += size
    return kept_bytes
