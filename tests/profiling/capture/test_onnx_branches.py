"""`If` nodes of ONNX files whose condition is a constant."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from profiling.capture.onnx import capture_onnx
from profiling.capture.onnx_branches import take_branches
from profiling.errors import InputError


def value(name: str, *dims: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims or None)


def truth(name: str, is_true: bool) -> onnx.TensorProto:
    return helper.make_tensor(name, TensorProto.BOOL, [], [is_true])


def weight(name: str, *dims: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.ones(dims, np.float32), name)


def branch(nodes: list[Any], output: str = "o", **more: Any) -> onnx.GraphProto:
    return helper.make_graph(nodes, "body", [], [value(output)], **more)


def chosen(condition: str, output: str = "y") -> onnx.NodeProto:
    """A layer with 3 or 5 outputs, whose branches use the same names."""
    sides = {
        f"{side}_branch": branch(
            [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["o"])],
            initializer=[weight("w", 4, width)],
        )
        for side, width in (("then", 3), ("else", 5))
    }
    return helper.make_node("If", [condition], [output], **sides)


def model_of(nodes: list[Any], inputs: tuple[Any, ...] = (), **more: Any) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", [value("x", 2, 4), *inputs], [value("y")], **more)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize(("is_true", "width"), [(True, 3), (False, 5)])
@pytest.mark.parametrize("how", ["initializer", "raw", "constant"])
def test_the_branch_taken_is_read(how: str, is_true: bool, width: int) -> None:
    nodes, more = [chosen("c")], dict[str, Any]()
    if how == "constant":
        nodes.insert(0, helper.make_node("Constant", [], ["c"], value=truth("c", is_true)))
    elif how == "raw":
        more["initializer"] = [numpy_helper.from_array(np.array([is_true]), "c")]
    else:
        more["initializer"] = [truth("c", is_true)]
    graph = capture_onnx(model_of(nodes, **more).SerializeToString())
    assert [(op.kind, op.output_shape) for op in graph.operators] == [
        ("linear", (2, width)),
        ("activation", (2, width)),
    ]
    assert graph.parameter_count == 4 * width
    assert graph.forward_flops == 2 * 2 * 4 * width + graph.operators[1].forward_flops


@pytest.mark.parametrize("is_default", [False, True])
def test_a_condition_that_the_caller_sets_stays(is_default: bool) -> None:
    model = model_of(
        [chosen("c")],
        (helper.make_tensor_value_info("c", TensorProto.BOOL, []),),
        initializer=[truth("c", True)] if is_default else [],
    )
    assert not take_branches(model.graph, 8)
    with pytest.raises(InputError, match="inside ONNX If"):
        capture_onnx(model.SerializeToString())


def test_a_condition_whose_value_is_elsewhere_stays() -> None:
    tensor = onnx.TensorProto(name="c", data_type=TensorProto.BOOL, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="weights.bin")
    with pytest.raises(InputError, match="inside ONNX If"):
        capture_onnx(model_of([chosen("c")], initializer=[tensor]).SerializeToString())


def test_names_of_branches_do_not_meet() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a/h"]),
        chosen("c", "a"),
        chosen("c", "b"),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    model = model_of(nodes, initializer=[truth("c", True)])
    assert take_branches(model.graph, 8)
    model.graph.output[0].CopyFrom(value("y", 2, 3))
    onnx.checker.check_model(model, full_check=True)
    graph = capture_onnx(model.SerializeToString())
    assert [op.kind for op in graph.operators].count("linear") == 2
    assert graph.parameter_count == 2 * 4 * 3


def test_a_branch_in_a_branch() -> None:
    inner = branch([chosen("d", "o")], initializer=[truth("d", False)])
    other = branch([helper.make_node("Identity", ["x"], ["o"])])
    node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=other)
    graph = capture_onnx(model_of([node], initializer=[truth("c", True)]).SerializeToString())
    assert [op.output_shape for op in graph.operators] == [(2, 5), (2, 5)]


def test_a_branch_that_passes_a_tensor_on() -> None:
    """Dropout outside of training: the result of the branch is made before the `If`."""
    passed_on = branch([], "h")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node(
            "If",
            ["c"],
            ["z"],
            then_branch=branch([helper.make_node("Relu", ["h"], ["o"])]),
            else_branch=passed_on,
        ),
        helper.make_node("Sigmoid", ["z"], ["y"]),
    ]
    model = model_of(nodes, initializer=[weight("w", 4, 3), truth("c", False)])
    graph = capture_onnx(model.SerializeToString())
    assert [op.kind for op in graph.operators] == ["linear", "activation"]
    assert [(edge.source, edge.target) for edge in graph.edges][:1] == [(0, 1)]
