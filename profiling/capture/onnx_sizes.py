"""`OperatorSizes` of an ONNX node, from the shapes of its inputs and output."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from profiling.operator_sizes import NO_SIZES, OperatorSizes, window_sizes

Shape = tuple[int, ...]
Attribute = Callable[[str, Any], Any]


def sizes_of(
    op_type: str, kind: str, inputs: Sequence[Shape], output: Shape, attribute: Attribute
) -> OperatorSizes:
    """Sizes of an ONNX operator of canonical kind `kind`.

    Args:
        inputs: shapes of all inputs, `()` for those that are missing or unknown.
        attribute: `(name, default) -> value` of the node.
    """
    if not inputs or not inputs[0]:
        return NO_SIZES
    if kind in ("convolution", "depthwise_convolution", "transposed_convolution"):
        return _convolution(op_type, inputs, output, attribute)
    if op_type == "Gemm":
        inner = inputs[0][0] if attribute("transA", 0) else inputs[0][-1]
        return _product(output, 1, inner)
    if op_type in ("MatMul", "MatMulInteger"):
        batch = math.prod(inputs[1][:-2]) if len(inputs[1]) > 2 else 1
        return _product(output if len(inputs[1]) > 1 else (*output, 1), batch, inputs[0][-1])
    if kind == "attention" and len(inputs[0]) == 4 and len(inputs) > 1 and len(inputs[1]) == 4:
        (samples, heads, queries, width), keys = inputs[0], inputs[1][-2]
        return OperatorSizes(
            gemm_batch=samples * heads,
            gemm_m=queries,
            gemm_n=keys,
            gemm_k=width,
            heads=heads,
            query_length=queries,
            key_length=keys,
            head_width=width,
        )
    if kind == "recurrent" and len(inputs) > 2 and len(inputs[2]) == 3:
        directions, gates, hidden = inputs[2]
        return OperatorSizes(
            gemm_batch=directions,
            gemm_m=inputs[0][1],
            gemm_n=gates,
            gemm_k=hidden,
            steps=inputs[0][0],
            input_channels=inputs[0][-1],
            output_channels=directions * hidden,
        )
    if kind == "embedding":
        return OperatorSizes(table_rows=inputs[0][0], table_width=math.prod(inputs[0][1:]))
    return _statistics(op_type, kind, inputs, output, attribute)


def recurrent_shapes(
    op_type: str, output: Shape, hidden: int, weight_elements: int
) -> tuple[Shape, Shape, Shape]:
    """Shapes of the sequence and both weight tensors of an LSTM, GRU or RNN node, from its attributes and parameters.

    For files in which the weights come from operators whose output shapes are known only at run time.

    Args:
        output: (steps, directions, samples, `hidden`).
        weight_elements: number of elements of the parameters from which the input weights are made.
    """
    steps, directions, samples, _ = output
    gates = hidden * {"LSTM": 4, "GRU": 3}.get(op_type, 1)
    features = weight_elements // max(1, directions * gates)
    return (steps, samples, features), (directions, gates, features), (directions, gates, hidden)


def _convolution(op_type: str, inputs: Sequence[Shape], output: Shape, attribute: Attribute) -> OperatorSizes:
    data, weight, groups = inputs[0], inputs[1], int(attribute("group", 1))
    if op_type == "ConvTranspose":
        channels = weight[0], weight[1] * groups
        product = data[0] * math.prod(data[2:]), math.prod(weight[1:]), weight[0] // groups
    else:
        channels = weight[1] * groups, weight[0]
        product = output[0] * math.prod(output[2:]), weight[0] // groups, math.prod(weight[1:])
    return OperatorSizes(
        gemm_batch=groups,
        gemm_m=product[0],
        gemm_n=product[1],
        gemm_k=product[2],
        **window_sizes(
            data[2:],
            channels,
            weight[2:],
            tuple(attribute("strides", (1,))),
            max(attribute("dilations", (1,))),
            groups,
        ),
    )


def _product(output: Shape, batch: int, inner: int) -> OperatorSizes:
    columns = output[-1]
    rows = math.prod(output) // max(1, batch * columns)
    return OperatorSizes(gemm_batch=batch, gemm_m=rows, gemm_n=columns, gemm_k=inner)


def _statistics(
    op_type: str, kind: str, inputs: Sequence[Shape], output: Shape, attribute: Attribute
) -> OperatorSizes:
    data = inputs[0]
    elements = math.prod(data)
    if kind == "batch_norm" and len(data) > 1:
        count = data[1] * (data[0] if op_type == "InstanceNormalization" else 1)
        return OperatorSizes(reduction_size=elements // max(1, count), reduction_count=count, **_image(data))
    if kind == "layer_norm":
        return _groups(elements, math.prod(data[attribute("axis", -1) :]))
    if kind == "group_norm":
        groups = int(attribute("num_groups", 1))
        size = elements // max(1, data[0] * groups)
        return OperatorSizes(
            reduction_size=size, reduction_count=data[0] * groups, groups=groups, **_image(data)
        )
    if kind == "softmax":
        return _groups(elements, data[attribute("axis", -1)])
    if kind == "loss":
        return _groups(elements, data[1] if len(data) > 1 else elements)
    if kind == "reduction":
        whole = math.prod(output) == elements  # CumSum and normalisations
        return _groups(elements, data[-1] if whole else elements // max(1, math.prod(output)))
    if kind == "pooling" and len(data) > 2:
        window = tuple(attribute("kernel_shape", ()))
        kernel = window or data[2:]  # a global one
        stride = tuple(attribute("strides", (1,))) if window else kernel
        return OperatorSizes(
            reduction_size=math.prod(kernel),
            reduction_count=math.prod(output),
            **window_sizes(data[2:], (data[1], data[1]), kernel, stride),
        )
    if kind == "resize":
        is_image = op_type in ("Resize", "Upsample") and len(data) > 2
        interpolates = is_image and attribute("mode", b"nearest") in (b"linear", b"cubic")
        serial = interpolates and not attribute("antialias", 0)  # as in torch, see `sizes._resize`
        return OperatorSizes(steps=data[0] * data[1] if serial else 0, **_image(data))
    return NO_SIZES


def _groups(elements: int, size: int) -> OperatorSizes:
    return OperatorSizes(reduction_size=size, reduction_count=elements // max(1, size))


def _image(data: Shape) -> dict[str, int]:
    if not 3 <= len(data) <= 5:
        return {}
    depth, height, width = (1,) * (5 - len(data)) + data[2:]
    return {
        "input_channels": data[1],
        "output_channels": data[1],
        "input_depth": depth,
        "input_height": height,
        "input_width": width,
    }
