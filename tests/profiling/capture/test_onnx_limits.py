"""Small files that would expand enormously are refused before anything is computed."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from profiling.capture.onnx_limits import OnnxLimits, check_model
from profiling.errors import LimitError


def model(graph: onnx.GraphProto, functions: list[onnx.FunctionProto] | None = None) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions or [])


def value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [1])


@pytest.mark.parametrize("as_constant", [False, True])
def test_a_long_range(as_constant: bool) -> None:
    tensors = [
        helper.make_tensor(name, TensorProto.INT64, [], [number])
        for name, number in (("start", 0), ("limit", 10**9), ("step", 1))
    ]
    nodes = [helper.make_node("Constant", [], [t.name], value=t) for t in tensors] if as_constant else []
    nodes.append(helper.make_node("Range", ["start", "limit", "step"], ["y"]))
    graph = helper.make_graph(nodes, "g", [value("x")], [value("y")], [] if as_constant else tensors)
    assert len(model(graph).SerializeToString()) < 500
    with pytest.raises(LimitError, match="Range"):
        check_model(model(graph), OnnxLimits())


def test_exponentially_growing_functions() -> None:
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = []
    for level in range(30):
        calls = ["Relu"] * 2 if level == 0 else [f"f{level - 1}"] * 2
        nodes = [
            helper.make_node(call, [source], [target], domain="" if call == "Relu" else "own")
            for call, source, target in zip(calls, ("x", "m"), ("m", "y"), strict=True)
        ]
        functions.append(helper.make_function("own", f"f{level}", ["x"], ["y"], nodes, opset))
    graph = helper.make_graph(
        [helper.make_node("f29", ["x"], ["y"], domain="own")], "g", [value("x")], [value("y")]
    )
    with pytest.raises(LimitError, match="inlined"):
        check_model(model(graph, functions), OnnxLimits())
    short = helper.make_graph(
        [helper.make_node("f3", ["x"], ["y"], domain="own")], "g", [value("x")], [value("y")]
    )
    check_model(model(short, functions[:4]), OnnxLimits())


def test_omitted_inputs_and_outputs_are_not_a_cycle() -> None:
    """ONNX writes both as the empty string; the node does not read its own output."""
    node = helper.make_node("LSTM", ["x", "w", "r", "b", "", "h"], ["y", "", "c"], hidden_size=4)
    check_model(model(helper.make_graph([node], "g", [value("x")], [value("y")])), OnnxLimits())
