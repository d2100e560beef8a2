"""Operators as NumPy columns, the input of cost models and encoders."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from profiling.operator_sizes import RECOMPUTED_COLUMNS, SIZE_COLUMNS
from profiling.operators import WEIGHTED, dtype_index, kind_index

if TYPE_CHECKING:
    from profiling.graph import Operator, TensorEdge

COUNT_COLUMNS = (
    "forward_flops",
    "backward_flops",
    "bytes_read",
    "bytes_written",
    "backward_bytes",
    "parameter_bytes",
    "saved_activation_bytes",
    "kernel_count",
    "forward_kernel_count",
    "tensor_core",
    "repeat",
    "layer_index",
    "training_only",
)
CODE_COLUMNS = ("kind", "dtype", "input_dtype", "weight_dtype")
COLUMNS = (*COUNT_COLUMNS, *RECOMPUTED_COLUMNS, *SIZE_COLUMNS, *CODE_COLUMNS, "output_elements")


def columns_of(operators: Sequence[Operator]) -> dict[str, NDArray[np.float64]]:
    """Every column by its name, [N] each, as float64.

    Names are those of `Operator` and `OperatorSizes`. `kind` is an index into `profiling.operators.KINDS`
    (unknown kinds are `other`), types are indices into `profiling.operators.DTYPES` (-1 if unknown), and
    `output_elements` is the product of the output's shape.
    """
    sizes = [op.sizes for op in operators]
    columns = {name: _array(getattr(op, name) for op in operators) for name in COUNT_COLUMNS}
    columns |= {name: _array(getattr(op, name) for op in operators) for name in RECOMPUTED_COLUMNS}
    columns |= {name: _array(getattr(size, name) for size in sizes) for name in SIZE_COLUMNS}
    columns["kind"] = _array(kind_index(op.kind) for op in operators)
    for name in CODE_COLUMNS[1:]:
        columns[name] = _array(dtype_index(getattr(op, name)) for op in operators)
    columns["output_elements"] = _array(math.prod(op.output_shape) for op in operators)
    return columns


def _array(values: Iterable[float]) -> NDArray[np.float64]:
    return np.fromiter(values, dtype=np.float64)


def gradient_layers(
    operators: Sequence[Operator], edges: Sequence[TensorEdge], frozen: Collection[int] = ()
) -> NDArray[np.int64]:
    """[2, N] layer of an operator's own parameters [0], and last layer that its inputs depend on [1].

    Layers are atomic layers; -1 if there is none. With the first k layers frozen, autograd computes the
    gradient of the parameters if [0] is at least k, and that of the inputs if [1] is. Parameters outside any
    layer are never frozen; those of the `frozen` layers have no gradient anyway.
    """
    never_frozen = np.iinfo(np.int64).max
    # Tied weights are counted where they are first used; a product without parameters of its own still has
    # its layer.
    own = [
        never_frozen
        if op.parameter_bytes > 0 > op.layer_index
        else op.layer_index
        if (op.parameter_bytes > 0 or op.kind in WEIGHTED) and op.layer_index not in frozen
        else -1
        for op in operators
    ]
    inputs = [-1] * len(operators)
    for edge in sorted(edges, key=lambda edge: edge.target):
        inputs[edge.target] = max(inputs[edge.target], own[edge.source], inputs[edge.source])
    return np.array([own, inputs], dtype=np.int64).reshape(2, -1)
