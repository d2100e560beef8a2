"""A graph for every batch size: each number is a constant plus a slope times the batch size.

Everything that a step on dense tensors does is affine in the number of samples: work and traffic of
activations grow with it, those of weights do not. Two recorded batch sizes determine the line, and others
verify it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from profiling.errors import InputError
from profiling.graph import ComputationGraph, Operator, TensorEdge, operator_names
from profiling.graph_columns import COUNT_COLUMNS
from profiling.operator_sizes import SIZE_COLUMNS, OperatorSizes

Floats = NDArray[np.float64]

COUNTS = COUNT_COLUMNS[: COUNT_COLUMNS.index("tensor_core")]
MAX_RANK = 6
"""Most dimensions of an output's shape; further ones are folded into the last."""
NUMBERS = (*COUNTS, *SIZE_COLUMNS, *(f"output_{i}" for i in range(MAX_RANK)))
"""Columns of an operator that may depend on the batch size."""
TRAITS = ("kind", "dtype", "input_dtype", "weight_dtype", "tensor_core", "training_only", "rank")
"""Properties of an operator that do not."""
PEAKS = ("activation_bytes", "forward_activation_bytes")
"""Largest of the bytes alive at any time: each an upper envelope of lines."""
LARGEST_BATCH = 65_536
"""Up to which batch size the envelopes are kept."""
FIXED_SCALARS = (
    "parameter_count",
    "parameter_bytes",
    "gradient_bytes",
    "optimizer_state_bytes",
    "optimizer_flops",
    "optimizer_bytes",
    "optimizer_kernels",
)
Curves = dict[str, list[float]]

Trait = tuple[str, str, str, str, bool, bool, int]


@dataclass(frozen=True)
class Structure:
    """What graphs of one architecture have in common, regardless of tensor sizes.

    Attributes:
        layers: names of the atomic layers.
        layer_index: [N] layer of each operator.
        paths: distinct module paths, in order of first use.
        path_index: [N] into `paths`.
        edges: [E, 2] source and target.
    """

    layers: tuple[str, ...]
    layer_index: NDArray[np.int32]
    paths: tuple[str, ...]
    path_index: NDArray[np.int32]
    edges: NDArray[np.int32]


@dataclass(frozen=True)
class AffineGraph:
    """A computation graph as an affine function of the batch size.

    Attributes:
        name: name of the model.
        structure: positions of the operators and the edges between them.
        traits: [N] of `TRAITS`.
        repeat: [N] folded counts.
        numbers: [2, N, len(NUMBERS)] constants, then slopes.
        edge_bytes: [2, E] likewise.
        peaks: per name of `PEAKS` [2, lines] likewise; the peak is the maximum over the lines.
        host_input: [2] likewise.
        fixed: [len(FIXED_SCALARS)].
        options: as captured.
    """

    name: str
    structure: Structure
    traits: tuple[Trait, ...]
    repeat: NDArray[np.int32]
    numbers: Floats
    edge_bytes: Floats
    peaks: tuple[Floats, ...]
    host_input: Floats
    fixed: Floats
    options: dict[str, object]

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """Names of the operators, as in a recording."""
        paths = [self.structure.paths[index] for index in self.structure.path_index.tolist()]
        return operator_names(zip(paths, (trait[0] for trait in self.traits), strict=True))

    def values(self, batch_size: int) -> Floats:
        """[N, len(NUMBERS)] for a number of samples."""
        return self.numbers[0] + batch_size * self.numbers[1]

    def at(
        self, batch_size: int, values: Floats | None = None, traits: tuple[Trait, ...] | None = None
    ) -> ComputationGraph:
        """The graph of a step for a number of samples; `values` and `traits` replace the recorded ones."""
        values = self.values(batch_size) if values is None else values
        peaks = [float((lines[0] + batch_size * lines[1]).max()) for lines in self.peaks]
        edge_bytes = (self.edge_bytes[0] + batch_size * self.edge_bytes[1]).tolist()
        counts = values[:, : len(COUNTS)].tolist()
        rest = np.rint(values[:, len(COUNTS) :]).astype(np.int64).tolist()
        width = len(SIZE_COLUMNS)
        known: dict[tuple[int, ...], OperatorSizes] = {}
        structure = self.structure
        operators = []
        for name, trait, repeat, layer, path, count, sizes in zip(
            self._names,
            self.traits if traits is None else traits,
            self.repeat.tolist(),
            structure.layer_index.tolist(),
            structure.path_index.tolist(),
            counts,
            rest,
            strict=True,
        ):
            kind, dtype, input_dtype, weight_dtype, tensor_core, training_only, rank = trait
            key = tuple(sizes[:width])
            operator_sizes = known.get(key)
            if operator_sizes is None:
                operator_sizes = known[key] = OperatorSizes(*key)
            operators.append(
                Operator(
                    name=name,
                    kind=kind,
                    forward_flops=count[0],
                    backward_flops=count[1],
                    bytes_read=count[2],
                    bytes_written=count[3],
                    backward_bytes=count[4],
                    parameter_bytes=count[5],
                    saved_activation_bytes=count[6],
                    output_shape=tuple(sizes[width : width + rank]),
                    dtype=dtype,
                    input_dtype=input_dtype,
                    weight_dtype=weight_dtype,
                    module_path=structure.paths[path],
                    layer_index=layer,
                    kernel_count=count[7],
                    forward_kernel_count=count[8],
                    tensor_core=tensor_core,
                    repeat=repeat,
                    training_only=training_only,
                    sizes=operator_sizes,
                )
            )
        parameter_count, *held = self.fixed.tolist()
        edges = tuple(
            TensorEdge(source, target, size)
            for (source, target), size in zip(structure.edges.tolist(), edge_bytes, strict=True)
        )
        return ComputationGraph(
            name=self.name,
            operators=tuple(operators),
            edges=edges,
            layers=structure.layers,
            batch_size=batch_size,
            parameter_count=int(parameter_count),
            **dict(zip(FIXED_SCALARS[1:], held, strict=True)),
            activation_bytes=peaks[0],
            forward_activation_bytes=peaks[1],
            host_input_bytes=float(self.host_input[0] + batch_size * self.host_input[1]),
            options=dict(self.options),
            source="torch",
        )


def fit(first: ComputationGraph, second: ComputationGraph, curves: tuple[Curves, Curves]) -> AffineGraph:
    """The line through two graphs of one model that differ only in their batch size.

    Args:
        first, second: the graphs.
        curves: for both, the bytes alive after each new tensor, by the names of `PEAKS`.

    Raises:
        InputError: the operators or edges differ in more than numbers.
    """
    step = second.batch_size - first.batch_size
    structure, traits = structure_of(first), traits_of(first)
    if traits != traits_of(second) or not same_structure(structure, structure_of(second)):
        raise InputError(f"the operators of {first.name} depend on its batch size")

    def line(low: Floats, high: Floats) -> Floats:
        slope = (high - low) / step
        return np.stack([low - first.batch_size * slope, slope])

    if any(len(curves[0][peak]) != len(curves[1][peak]) for peak in PEAKS):
        raise InputError(f"the tensors of {first.name} depend on its batch size")
    fixed = fixed_scalars(first)
    if not np.array_equal(fixed, fixed_scalars(second)):
        raise InputError(f"the parameters of {first.name} depend on its batch size")
    return AffineGraph(
        name=first.name,
        structure=structure,
        traits=traits,
        repeat=np.array([op.repeat for op in first.operators], dtype=np.int32),
        numbers=line(numbers_of(first), numbers_of(second)),
        edge_bytes=line(_edge_bytes(first), _edge_bytes(second)),
        peaks=tuple(_envelope(line(np.array(curves[0][p]), np.array(curves[1][p]))) for p in PEAKS),
        host_input=line(np.array(first.host_input_bytes), np.array(second.host_input_bytes)),
        fixed=fixed,
        options=dict(first.options),
    )


def check(line: AffineGraph, graph: ComputationGraph) -> None:
    """Compare the line with a graph of another batch size, number by number.

    Raises:
        InputError: they differ; the message states where.
    """
    batch = graph.batch_size
    if line.traits != traits_of(graph) or not same_structure(line.structure, structure_of(graph)):
        raise InputError(f"the operators of {graph.name} differ at batch size {batch}")
    expected = line.values(batch)
    numbers = numbers_of(graph)
    wrong = np.argwhere(~np.isclose(expected, numbers, rtol=1e-9, atol=1e-3))
    if len(wrong):
        row, column = wrong[0]
        raise InputError(
            f"{NUMBERS[column]} of {graph.operators[row].name} in {graph.name} is not affine in the batch size",
            expected=str(expected[row, column]),
            got=numbers[row, column],
        )
    if not np.allclose(line.edge_bytes[0] + batch * line.edge_bytes[1], _edge_bytes(graph), rtol=1e-9):
        raise InputError(f"edges of {graph.name} are not affine in the batch size")
    answer = line.at(batch)
    for name in (*PEAKS, "host_input_bytes"):
        if not np.isclose(getattr(answer, name), getattr(graph, name), rtol=1e-9):
            raise InputError(
                f"{name} of {graph.name} is not a maximum of lines in the batch size",
                expected=str(getattr(answer, name)),
                got=getattr(graph, name),
            )


def same_structure(first: Structure, second: Structure) -> bool:
    """Whether two graphs have the same operators in the same positions."""
    return (
        first.layers == second.layers
        and first.paths == second.paths
        and np.array_equal(first.layer_index, second.layer_index)
        and np.array_equal(first.path_index, second.path_index)
        and np.array_equal(first.edges, second.edges)
    )


def structure_of(graph: ComputationGraph) -> Structure:
    """The positions of a graph's operators."""
    places: dict[str, int] = {}
    path_index = [places.setdefault(op.module_path, len(places)) for op in graph.operators]
    return Structure(
        layers=graph.layers,
        layer_index=np.array([op.layer_index for op in graph.operators], dtype=np.int32),
        paths=tuple(places),
        path_index=np.array(path_index, dtype=np.int32),
        edges=np.array([(e.source, e.target) for e in graph.edges], dtype=np.int32).reshape(-1, 2),
    )


def traits_of(graph: ComputationGraph) -> tuple[Trait, ...]:
    """`TRAITS` of every operator."""
    return tuple(
        (
            op.kind,
            op.dtype,
            op.input_dtype,
            op.weight_dtype,
            op.tensor_core,
            op.training_only,
            min(len(op.output_shape), MAX_RANK),
        )
        for op in graph.operators
    )


def numbers_of(graph: ComputationGraph) -> Floats:
    """[N, len(NUMBERS)] of a graph."""
    rows = [
        (
            *(getattr(op, name) for name in COUNTS),
            *(getattr(op.sizes, name) for name in SIZE_COLUMNS),
            *_shape(op.output_shape),
        )
        for op in graph.operators
    ]
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(NUMBERS))


def fixed_scalars(graph: ComputationGraph) -> Floats:
    """[len(FIXED_SCALARS)] of a graph."""
    return np.array([getattr(graph, name) for name in FIXED_SCALARS], dtype=np.float64)


def _shape(shape: Sequence[int]) -> tuple[int, ...]:
    kept = tuple(shape[:MAX_RANK])
    if len(shape) > MAX_RANK:
        kept = (*kept[:-1], int(np.prod(shape[MAX_RANK - 1 :])))
    return kept + (0,) * (MAX_RANK - len(kept))


def _edge_bytes(graph: ComputationGraph) -> Floats:
    return np.array([edge.bytes for edge in graph.edges], dtype=np.float64)


def _envelope(lines: Floats) -> Floats:
    """The lines among [2, lines] (constants, slopes) that are largest at some batch size from 1 to
    `LARGEST_BATCH`."""
    kept = []
    batch = 1.0
    while True:
        values = lines[0] + batch * lines[1]
        at_top = np.flatnonzero(values >= values.max() * (1 - 1e-12))
        best = at_top[np.argmax(lines[1][at_top])]
        kept.append(best)
        steeper = np.flatnonzero(lines[1] > lines[1][best])
        if not len(steeper):
            break
        crossings = (lines[0][best] - lines[0][steeper]) / (lines[1][steeper] - lines[1][best])
        batch = float(crossings.min())
        if batch > LARGEST_BATCH:
            break
    return lines[:, kept]
