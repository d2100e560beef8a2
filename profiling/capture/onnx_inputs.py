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
        batch_size: first dimension of the inputs that are batches: those whose first dimension is open, or, if none
            is, has the size with which the graph was exported. None keeps it, or uses 1 if it is open.
        sequence_length: every other dynamic dimension.

    Raises:
        InputError: a dynamic dimension, but no sequence length; or one that no dimension takes.
    """
    initializers = {tensor.name for tensor in graph.initializer}
    named: dict[str, int] = {}
    size = batch_size or 1
    first_input, rebound = True, False
    inputs = [value for value in graph.input if value.name not in initializers]
    exported = _exported_size(inputs)
    for value in inputs:
        for i, dim in enumerate(value.type.tensor_type.shape.dim):
            is_open = _is_open(dim)
            if i == 0 and batch_size is not None and (is_open or dim.dim_value == exported):
                rebound |= not is_open and dim.dim_value != batch_size
                if dim.dim_param:
                    named[dim.dim_param] = batch_size
                dim.dim_value = batch_size
            elif i == 0 and is_open:
                dim.dim_value = named.setdefault(dim.dim_param, 1) if dim.dim_param else 1
            elif is_open:
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
            if i == 0 and first_input:
                size, first_input = int(dim.dim_value), False
    lengths = {dim.dim_value for value in inputs for dim in value.type.tensor_type.shape.dim}
    if sequence_length is not None and sequence_length not in lengths:
        raise InputError(
            "no dimension of the ONNX inputs is open for a sequence length",
            expected="a file exported with an open one, or no sequence length",
            got=f"sequence_length={sequence_length} for {described_inputs(graph)}",
        )
    _bind_notes(graph, named, rebound)
    return size


def _is_open(dim: Any) -> bool:
    return not dim.HasField("dim_value") or dim.dim_value <= 0


def _exported_size(inputs: Sequence[Any]) -> int | None:
    """The batch size of a graph that was exported for one: the most frequent first dimension of its inputs, the
    earliest of several. None if an input's first dimension is open, because fixed ones are then no batches."""
    first = [dims[0] for value in inputs if (dims := value.type.tensor_type.shape.dim)]
    if not first or any(map(_is_open, first)):
        return None
    return int(Counter(dim.dim_value for dim in first).most_common(1)[0][0])


def described_inputs(graph: Any) -> str:
    """The inputs with their shapes, for messages: `x (8, 3, 224, 224), n (1)`."""
    initializers = {tensor.name for tensor in graph.initializer}
    return ", ".join(
        f"{value.name} ({', '.join(str(dim.dim_value or dim.dim_param or '?') for dim in value.type.tensor_type.shape.dim)})"
        for value in graph.input
        if value.name not in initializers
    )


def _bind_notes(graph: Any, named: dict[str, int], rebound: bool) -> None:
    """Bind the exporter's shapes of inner tensors; drop those for another batch size."""
    for value in (*graph.value_info, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in named and not dim.HasField("dim_value"):
                dim.dim_value = named[dim.dim_param]

    def is_bound(value: Any) -> bool:
        tensor = value.type.tensor_type
        return (
            not rebound
            and tensor.HasField("shape")
            and all(d.HasField("dim_value") for d in tensor.shape.dim)
        )

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
