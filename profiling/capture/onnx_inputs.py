"""Prepares ONNX graphs for shape inference: drops their weights and binds the dimensions of their inputs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from profiling.errors import InputError

_LARGE_BYTES = 4096


def drop_weights(graph: Any) -> None:
    """Drop the weights in place: only small integer tensors (shapes, axes) matter to shape inference."""
    for tensor in graph.initializer:
        if len(tensor.raw_data) > _LARGE_BYTES:
            tensor.ClearField("raw_data")
        if len(tensor.float_data) > _LARGE_BYTES // 4:
            tensor.ClearField("float_data")
        if tensor.external_data:
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")


def bind_inputs(graph: Any, batch_size: int | None, sequence_length: int | None) -> int:
    """Fill in dynamic dimensions in place, and return the batch size.

    Args:
        graph: an ONNX graph.
        batch_size: first dimension of the inputs in which it is open, or that of a fixed one. None keeps it, or uses 1 if
            it is open.
        sequence_length: every other dynamic dimension.

    Raises:
        InputError: a dynamic dimension, but no sequence length; or a size that no dimension takes.
    """
    initializers = {tensor.name for tensor in graph.initializer}
    named: dict[str, int] = {}
    inputs = [value for value in graph.input if value.name not in initializers]
    size = _batch_size(graph, inputs, batch_size)
    for value in inputs:
        for i, dim in enumerate(value.type.tensor_type.shape.dim):
            if not _is_open(dim):
                continue
            if i == 0 and batch_size is not None:
                dim.dim_value = batch_size
            elif i == 0:
                dim.dim_value = named.get(dim.dim_param, 1)
            else:
                bound = named.get(dim.dim_param) if dim.dim_param else None
                if bound is None and sequence_length is None:
                    raise InputError(
                        f"dimension {i} of ONNX input {value.name!r} is open",
                        expected="a sequence length",
                        hint="give --sequence-length",
                    )
                dim.dim_value = bound or sequence_length or 1
            if dim.dim_param:
                named[dim.dim_param] = dim.dim_value
    lengths = {dim.dim_value for value in inputs for dim in value.type.tensor_type.shape.dim}
    if sequence_length is not None and sequence_length not in lengths:
        raise InputError(
            "no dimension of the ONNX inputs is open for a sequence length",
            expected="a file exported with an open one, or no sequence length",
            got=f"sequence_length={sequence_length} for {described_inputs(graph)}",
        )
    _bind_notes(graph, named)
    return size


def _is_open(dim: Any) -> bool:
    return not dim.HasField("dim_value") or dim.dim_value <= 0


def _batch_size(graph: Any, inputs: Sequence[Any], asked: int | None) -> int:
    """The asked batch size or, without one, the first dimension of the first input, 1 if it is open.

    Raises:
        InputError: a batch size for inputs of another one. Nodes inside may have it in their constants, as in a Reshape.
    """
    first = [dims[0] for value in inputs if (dims := value.type.tensor_type.shape.dim)]
    fixed = [dim.dim_value for dim in first if not _is_open(dim)]
    if asked is None:
        return 1 if not first or _is_open(first[0]) else int(fixed[0])
    if first and len(fixed) == len(first) and asked not in fixed:
        exported = Counter(fixed).most_common(1)[0][0]
        raise InputError(
            "the ONNX inputs have a fixed batch size",
            expected=f"batch_size={exported}, or none",
            got=f"batch_size={asked} for {described_inputs(graph)}",
            hint="export the model with an open first dimension (dynamic_shapes of torch.onnx.export)",
        )
    return asked


def described_inputs(graph: Any) -> str:
    """The inputs with their shapes, for messages: `x (8, 3, 224, 224), n (1)`."""
    initializers = {tensor.name for tensor in graph.initializer}
    return ", ".join(
        f"{value.name} ({', '.join(str(dim.dim_value or dim.dim_param or '?') for dim in value.type.tensor_type.shape.dim)})"
        for value in graph.input
        if value.name not in initializers
    )


def _bind_notes(graph: Any, named: dict[str, int]) -> None:
    """Bind the exporter's shapes of inner tensors; drop those that stay open."""
    for value in (*graph.value_info, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in named and not dim.HasField("dim_value"):
                dim.dim_value = named[dim.dim_param]

    def is_bound(value: Any) -> bool:
        tensor = value.type.tensor_type
        return tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim)

    notes = [
        type(value).FromString(value.SerializeToString()) for value in graph.value_info if is_bound(value)
    ]
    del graph.value_info[:]
    graph.value_info.extend(notes)
    for value in graph.output:
        if not is_bound(value):
            value.type.tensor_type.ClearField("shape")


def input_bytes(graph: Any) -> float:
    """Bytes of all inputs, whose shapes are bound."""
    initializers = {tensor.name for tensor in graph.initializer}
    return float(
        sum(
            math.prod(d.dim_value for d in v.type.tensor_type.shape.dim)
            * item_bytes(v.type.tensor_type.elem_type)
            for v in graph.input
            if v.name not in initializers
        )
    )


def item_bytes(elem_type: int) -> int:
    """Bytes of one element of an ONNX tensor type; 4 if the type is not given."""
    import onnx

    return max(1, onnx.helper.tensor_dtype_to_np_dtype(elem_type).itemsize) if elem_type else 4
