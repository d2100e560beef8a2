"""Parameters, multiply-adds and activations of a NAS-Bench-101 network, counted from its cell.

Ying et al., ICML 2019. A network is a 3x3 stem of 128 channels, three stacks of three cells with a 2x2
max-pool and a doubling of channels before the second and third, a mean over the image and a dense layer. In a
cell, vertices that feed the output share its channels evenly, the first ones taking the remainder; any other
vertex has as many as the largest vertex that it feeds; the cell's input enters through 1x1 projections.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiling.errors import InputError

CONV3X3, CONV1X1, MAXPOOL3X3 = 0, 1, 2
_STEM_CHANNELS, _STACKS, _CELLS_PER_STACK, _IMAGE_SIZE, _CLASSES = 128, 3, 3, 32, 10


@dataclass
class CellCounts:
    """Totals of a network for one CIFAR-10 image, with convolutions followed by batch norm and ReLU.

    Attributes:
        parameters: trainable parameters.
        macs: multiply-adds of convolutions and the dense layer.
        activations: output elements of convolutions.
        pooled: output elements of pooling.
        layers: convolutions and poolings.
    """

    parameters: int = 0
    macs: int = 0
    activations: int = 0
    pooled: int = 0
    layers: int = 0

    def add_convolution(self, kernel: int, inputs: int, outputs: int, size: int) -> None:
        self.parameters += kernel**2 * inputs * outputs + 2 * outputs
        self.macs += kernel**2 * inputs * outputs * size**2
        self.activations += outputs * size**2
        self.layers += 1

    def add_pooling(self, channels: int, size: int) -> None:
        self.pooled += channels * size**2
        self.layers += 1


def count_cell_network(matrix: Sequence[Sequence[int]], operations: Sequence[int]) -> CellCounts:
    """Counts of the network of one cell.

    Args:
        matrix: [v, v] upper-triangular adjacency; vertex 0 is the input, the last one the output.
        operations: of each vertex; those of input and output are not read.

    Raises:
        InputError: no path leads from input to output, or an operation is unknown.
    """
    used = _on_a_path(matrix)
    edges = [[bool(matrix[a][b]) for b in used] for a in used]
    kinds = [operations[v] for v in used]
    if len(used) < 2 or used[0] != 0 or used[-1] != len(matrix) - 1:
        raise InputError(
            "a cell has no path from its input to its output",
            expected="an adjacency matrix in which one leads from the first vertex to the last",
            got=str(matrix),
        )
    counts = CellCounts()
    counts.add_convolution(3, 3, _STEM_CHANNELS, _IMAGE_SIZE)
    inputs = outputs = _STEM_CHANNELS
    size = _IMAGE_SIZE
    for stack in range(_STACKS):
        if stack:
            size, outputs = size // 2, outputs * 2
            counts.pooled += inputs * size**2
        for _ in range(_CELLS_PER_STACK):
            _add_cell(counts, edges, kinds, inputs, outputs, size)
            inputs = outputs
    counts.parameters += (inputs + 1) * _CLASSES
    counts.macs += inputs * _CLASSES
    return counts


def _add_cell(
    counts: CellCounts, edges: list[list[bool]], kinds: list[int], inputs: int, outputs: int, size: int
) -> None:
    channels = _channels(edges, outputs)
    last = len(edges) - 1
    for vertex in range(1, last):
        if edges[0][vertex]:
            counts.add_convolution(1, inputs, channels[vertex], size)
        if kinds[vertex] == MAXPOOL3X3:
            counts.add_pooling(channels[vertex], size)
        elif kinds[vertex] in (CONV3X3, CONV1X1):
            kernel = 3 if kinds[vertex] == CONV3X3 else 1
            counts.add_convolution(kernel, channels[vertex], channels[vertex], size)
        else:
            raise InputError("unknown operation in a cell", expected="0, 1 or 2", got=kinds[vertex])
    if edges[0][last]:
        counts.add_convolution(1, inputs, outputs, size)


def _channels(edges: list[list[bool]], outputs: int) -> list[int]:
    last = len(edges) - 1
    feeding = [v for v in range(1, last) if edges[v][last]]
    channels = [0] * (last + 1)
    for position, vertex in enumerate(feeding):
        share, remainder = divmod(outputs, len(feeding))
        channels[vertex] = share + (position < remainder)
    for vertex in range(last - 1, 0, -1):
        if not edges[vertex][last]:
            channels[vertex] = max(channels[to] for to in range(vertex + 1, last) if edges[vertex][to])
    return channels


def _on_a_path(matrix: Sequence[Sequence[int]]) -> list[int]:
    """Vertices on a path from the first to the last."""
    size = len(matrix)
    reached, leads = {0}, {size - 1}
    for vertex in range(size):
        if vertex in reached:
            reached |= {to for to in range(size) if matrix[vertex][to]}
    for vertex in range(size - 1, -1, -1):
        if any(matrix[vertex][to] and to in leads for to in range(size)):
            leads.add(vertex)
    return sorted(reached & leads)
