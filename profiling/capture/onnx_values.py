"""Shapes of an ONNX graph that depend on arithmetic with sizes.

`onnx.shape_inference` carries sizes through sums and products only. Exporters also divide them, for example the width by
the number of heads, and leave shapes open behind that.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

_MOST = 64
# Operators on sizes; none has a result much larger than its inputs, except ConstantOfShape.
# fmt: off
_FOLDED = frozenset((
    "Abs", "Add", "And", "Cast", "Ceil", "Concat", "ConstantOfShape", "Div", "Equal", "Floor", "Gather",
    "Greater", "Identity", "Less", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "ReduceMax",
    "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Slice", "Sqrt", "Squeeze", "Sub", "Unsqueeze",
    "Where",
))
# fmt: on


def complete_shapes(
    nodes: Sequence[Any],
    initializers: Sequence[Any],
    opset: int,
    shapes: dict[str, tuple[int, ...]],
    types: dict[str, int],
) -> None:
    """Add the shapes and types that follow once the values of sizes are known.

    Args:
        nodes: in topological order.
        opset: version of ONNX's own operators.
        shapes, types: of the tensors known so far.
    """
    if all(output in shapes for node in nodes for output in node.output if output):
        return
    import onnx
    from onnx import defs, helper, numpy_helper

    values: dict[str, np.ndarray[Any, Any]] = {}
    for tensor in initializers:
        # Data may be elsewhere, or dropped.
        with contextlib.suppress(ValueError, TypeError):
            if math.prod(tensor.dims) <= _MOST:
                values[tensor.name] = numpy_helper.to_array(tensor)
    for node in nodes:
        if node.domain not in ("", "ai.onnx"):
            continue
        inputs = [x for x in node.input if x]
        value = _value(node, opset, values, shapes)
        if value is not None:
            values[node.output[0]] = value
            shapes[node.output[0]] = value.shape
            types[node.output[0]] = helper.np_dtype_to_tensor_dtype(value.dtype)
        elif any(x and x not in shapes for x in node.output) and all(
            x in shapes and x in types for x in inputs
        ):
            known = {x: helper.make_tensor_type_proto(types[x], shapes[x]) for x in inputs}
            data = {x: numpy_helper.from_array(values[x]) for x in inputs if x in values}
            try:
                schema = defs.get_schema(node.op_type, opset, "")
                made = onnx.shape_inference.infer_node_outputs(
                    schema, node, known, data, opset_imports=[helper.make_opsetid("", opset)]
                )
            except Exception:  # the C++ code raises several unrelated types; the shape stays unknown
                continue
            for name, found in made.items():
                dims = found.tensor_type.shape.dim
                known_dims = all(d.HasField("dim_value") and d.dim_value >= 0 for d in dims)
                if found.tensor_type.HasField("shape") and known_dims:
                    shapes.setdefault(name, tuple(d.dim_value for d in dims))
                    types.setdefault(name, found.tensor_type.elem_type)


def _value(
    node: Any, opset: int, values: dict[str, np.ndarray[Any, Any]], shapes: dict[str, tuple[int, ...]]
) -> np.ndarray[Any, Any] | None:
    """The small constant that a node computes from sizes; None for other nodes."""
    from onnx import ValueInfoProto, helper
    from onnx.reference import ReferenceEvaluator

    inputs = [x for x in node.input if x]
    try:
        if node.op_type in ("Shape", "Size") and inputs[0] in shapes:
            feeds = {inputs[0]: np.broadcast_to(np.float32(0), shapes[inputs[0]])}
        elif node.op_type == "Constant":
            if any(a.name == "value" and math.prod(a.t.dims) > _MOST for a in node.attribute):
                return None
            feeds = {}
        elif node.op_type in _FOLDED and inputs and all(x in values for x in inputs):
            feeds = {x: values[x] for x in inputs}
            if node.op_type == "ConstantOfShape" and math.prod(feeds[inputs[0]].tolist()) > _MOST:
                return None
        else:
            return None
        given, made = ([ValueInfoProto(name=x) for x in names] for names in (feeds, node.output[:1]))
        alone = ReferenceEvaluator(helper.make_graph([node], "alone", given, made), opsets={"": opset})
        value = np.asarray(next(iter(alone.run(None, feeds))))
    except Exception:  # values that the operator cannot take
        return None
    return value if value.size <= _MOST else None
