"""ONNX: agreement with the recorded module, options, and hostile files."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper
from torch import Tensor, nn

from profiling.capture import OnnxLimits, capture_module, capture_onnx
from profiling.errors import CotenantError, InputError, LimitError, UnsafeFileError
from profiling.graph import ComputationGraph
from profiling.workload import Workload


class Mixed(nn.Module):
    """All kinds of convolutions, norms, attention and a perceptron, of which most models consist."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, 2, 1)
        self.bn = nn.BatchNorm2d(16)
        self.depthwise = nn.Conv2d(16, 16, 3, 1, 1, groups=16, bias=False)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.embed = nn.Embedding(50, 32)
        self.patch = nn.Conv2d(8, 32, 8, 8)
        self.norm = nn.LayerNorm(32)
        self.qkv = nn.Linear(32, 96)
        self.head = nn.Linear(32, 10)
        self.scale = nn.Parameter(torch.ones(32))

    def forward(self, image: Tensor, tokens: Tensor) -> Tensor:
        x = self.up(F.relu(self.depthwise(F.relu(self.bn(self.conv(image))))))
        patches = self.patch(x).flatten(2).transpose(1, 2)
        y = self.norm(torch.cat((patches, self.embed(tokens)), 1)) * self.scale
        query, key, value = self.qkv(y).chunk(3, -1)
        y = y + (query @ key.transpose(1, 2) * 0.2).softmax(-1) @ value
        return self.head(F.gelu(y).mean(1))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    model = Mixed().eval()
    path = tmp_path_factory.mktemp("onnx") / "mixed.onnx"
    inputs = (torch.randn(2, 3, 32, 32), torch.zeros(2, 6, dtype=torch.long))
    batch = torch.export.Dim("batch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            inputs,
            path,
            dynamo=True,
            optimize=False,
            external_data=False,
            verbose=False,
            dynamic_shapes=({0: batch}, {0: batch}),
        )
    return model, path


def recorded(model: nn.Module, batch: int, **options: Any) -> ComputationGraph:
    inputs = (torch.randn(batch, 3, 32, 32), torch.zeros(batch, 6, dtype=torch.long))
    return capture_module(model, inputs, workload=Workload("mixed", **options))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_agrees_with_the_recorded_module(exported: tuple[nn.Module, Path]) -> None:
    model, path = exported
    for batch, options in (
        (4, {}),
        (16, {"optimizer": "adam"}),
        (8, {"optimizer": "momentum", "precision": "fp16"}),
    ):
        workload = Workload("mixed", **options)
        graph = capture_onnx(path, batch_size=batch, workload=workload)
        expected = recorded(model, batch, **options)
        assert graph.source == "onnx"
        assert graph.batch_size == batch
        assert graph.parameter_count == expected.parameter_count
        assert graph.parameter_bytes == expected.parameter_bytes
        assert graph.gradient_bytes == expected.gradient_bytes
        assert graph.optimizer_state_bytes == expected.optimizer_state_bytes
        assert graph.forward_flops == pytest.approx(expected.forward_flops, rel=0.02)
        assert graph.backward_flops == pytest.approx(expected.backward_flops, rel=0.05)
        # The root module has no name in ONNX.
        assert set(expected.layers) - {""} < set(graph.layers)
        assert graph.host_input_bytes == recorded(model, batch).host_input_bytes


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_frozen_prefix_and_refused_options(exported: tuple[nn.Module, Path]) -> None:
    _, path = exported
    free = capture_onnx(path, batch_size=2)
    frozen = capture_onnx(path, batch_size=2, workload=Workload("x", frozen_prefix=3))
    assert frozen.gradient_bytes < free.gradient_bytes
    assert frozen.backward_flops < free.backward_flops
    assert frozen.forward_flops == free.forward_flops
    with pytest.raises(InputError, match="checkpointing"):
        capture_onnx(path, batch_size=2, workload=Workload("x", activation_checkpointing=True))
    with pytest.raises(InputError, match="out of range"):
        capture_onnx(path, batch_size=2, workload=Workload("x", frozen_prefix=99))


def model_of(nodes: list[Any], opset: int = 17, dims: Any = ("n", 4), **extra: Any) -> onnx.ModelProto:
    inputs = extra.pop("inputs", [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)])
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, **extra)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def weight(name: str = "w", *dims: int) -> onnx.TensorProto:
    return helper.make_tensor(name, TensorProto.FLOAT, dims or (4, 3), [0.0] * 12)


def test_small_model_by_hand() -> None:
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"], name="m")], initializer=[weight()])
    graph = capture_onnx(model.SerializeToString(), batch_size=5)
    assert graph.forward_flops == 2 * 5 * 4 * 3
    assert graph.backward_flops == graph.forward_flops  # the input needs no gradient
    assert graph.parameter_count == 12
    assert graph.host_input_bytes == 5 * 4 * 4
    (op,) = graph.operators
    assert (op.kind, op.output_shape) == ("linear", (5, 3))


def test_recurrent_weights_of_unknown_shape_are_counted_by_their_parameters() -> None:
    """`torch.onnx.export` may write LSTMs with slices whose ends are computed at run time."""
    steps, samples, features, hidden = 5, 2, 6, 3
    first = helper.make_tensor("first", TensorProto.INT64, [1], [0])
    nodes = [
        helper.make_node("Shape", [name], [f"{name}_shape"]) for name in ("w", "r")
    ] + [
        helper.make_node("ReduceMax", [f"{name}_shape"], [f"{name}_end"], keepdims=1) for name in ("w", "r")
    ] + [
        helper.make_node("Slice", [name, "first", f"{name}_end"], [f"{name}_slice"]) for name in ("w", "r")
    ]  # fmt: skip
    nodes.append(helper.make_node("LSTM", ["x", "w_slice", "r_slice"], ["y"], hidden_size=hidden))
    weights = [
        helper.make_tensor(name, TensorProto.FLOAT, [1, 4 * hidden, width], [0.0] * 4 * hidden * width)
        for name, width in (("w", features), ("r", hidden))
    ]
    model = model_of(nodes, dims=(steps, samples, features), initializer=[first, *weights])
    graph = capture_onnx(model.SerializeToString())
    (recurrent,) = [op for op in graph.operators if op.kind == "recurrent"]
    assert recurrent.forward_flops == 2 * steps * samples * 4 * hidden * (features + hidden)
    assert (recurrent.sizes.gemm_n, recurrent.sizes.gemm_k) == (4 * hidden, hidden)
    assert recurrent.forward_kernel_count == 1 + 2 * steps


@pytest.mark.parametrize(
    ("mode", "antialias", "steps"),
    [("linear", 0, 2 * 4), ("cubic", 0, 2 * 4), ("linear", 1, 0), ("cubic", 1, 0), ("nearest", 0, 0)],
)
def test_a_resize_that_interpolates_has_the_steps_of_a_recorded_one(
    mode: str, antialias: int, steps: int
) -> None:
    kernel = helper.make_tensor("w", TensorProto.FLOAT, [4, 3, 1, 1], [0.0] * 12)
    scales = helper.make_tensor("scales", TensorProto.FLOAT, [4], [1.0, 1.0, 2.0, 2.0])
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Resize", ["c", "", "scales"], ["y"], mode=mode, antialias=antialias),
    ]
    model = model_of(nodes, dims=(2, 3, 7, 7), initializer=[kernel, scales])
    (resize,) = [op for op in capture_onnx(model.SerializeToString()).operators if op.kind == "resize"]
    assert (resize.sizes.steps, resize.sizes.input_height) == (steps, 7)


def test_unknown_operators_are_counted() -> None:
    nodes = [helper.make_node("Mystery", ["x"], ["y"], domain="my.own")]
    model = model_of(nodes)
    model.opset_import.append(helper.make_opsetid("my.own", 1))
    with pytest.warns(UserWarning, match=r"Mystery \(1\)"):
        graph = capture_onnx(model.SerializeToString(), batch_size=2)
    (op,) = graph.operators
    assert op.kind == "Mystery"
    assert op.bytes_read > 0
    assert op.forward_flops > 0


def cycle() -> onnx.ModelProto:
    return model_of([helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])])


def outside(location: str) -> onnx.ModelProto:
    tensor = onnx.TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[4, 3], data_location=TensorProto.EXTERNAL
    )
    tensor.external_data.add(key="location", value=location)
    return model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], initializer=[tensor])


def nested(depth: int) -> onnx.ModelProto:
    out = helper.make_tensor_value_info("o", TensorProto.FLOAT, [1])
    body = helper.make_graph([helper.make_node("Identity", ["x"], ["o"])], "leaf", [], [out])
    for _ in range(depth):
        node = helper.make_node("If", ["c"], ["o"], then_branch=body, else_branch=body)
        body = helper.make_graph([node], "level", [], [out])
        if body.ByteSize() > 2**20:
            break
    return model_of(list(body.node))


def deep(depth: int) -> bytes:
    """One graph per level, written byte by byte, because the library refuses to build it."""

    def field(number: int, body: bytes) -> bytes:
        size, length = len(body), b""
        while size > 127:
            length += bytes([size & 127 | 128])
            size >>= 7
        return bytes([number << 3 | 2]) + length + bytes([size]) + body

    graph = model_of(RELU).graph.SerializeToString()
    for _ in range(depth):
        graph = field(1, field(4, b"Loop") + field(5, field(6, graph)))
    return field(7, graph)


def recursive() -> onnx.ModelProto:
    model = model_of([helper.make_node("F", ["x"], ["y"], domain="f")])
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    node = helper.make_node("F", ["a"], ["b"], domain="f")
    model.functions.append(helper.make_function("f", "F", ["a"], ["b"], [node], opset))
    model.opset_import.append(helper.make_opsetid("f", 1))
    return model


def branches(operator: str, *inputs: str) -> onnx.ModelProto:
    """A network in both branches of an `If`."""
    out = helper.make_tensor_value_info("o", TensorProto.FLOAT, None)
    body = helper.make_graph([helper.make_node(operator, inputs, ["o"])], "body", [], [out])
    kinds = (("x", TensorProto.FLOAT, ("n", 4)), ("c", TensorProto.BOOL, ()))
    node = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    inputs = [helper.make_tensor_value_info(*kind) for kind in kinds]
    return model_of([node], inputs=inputs, initializer=[weight()])


def test_light_work_in_a_branch_is_read() -> None:
    with pytest.warns(UserWarning, match=r"If \(1\)"):
        assert capture_onnx(branches("Relu", "x").SerializeToString(), batch_size=2).operators


RELU = [helper.make_node("Relu", ["x"], ["y"])]
HOSTILE = {
    "cycle": (cycle, UnsafeFileError, "cycle"),
    "external path up": (lambda: outside("../../etc/passwd"), UnsafeFileError, "outside"),
    "external path absolute": (lambda: outside("/etc/passwd"), UnsafeFileError, "outside"),
    "external path of windows": (lambda: outside("C:\\secret"), UnsafeFileError, "outside"),
    "nested graphs": (lambda: nested(12), UnsafeFileError, "nested"),
    "deeply nested graphs": (lambda: deep(400), UnsafeFileError, "nested"),
    "deeper than protobuf reads": (lambda: deep(20), UnsafeFileError, "nested"),
    "recursive function": (recursive, UnsafeFileError, "are recursive"),
    "huge input": (lambda: model_of(RELU, dims=(2**31, 2**31)), LimitError, "too large"),
    "huge weight": (
        lambda: model_of(RELU, initializer=[onnx.TensorProto(name="w", data_type=1, dims=[2**40, 2**10])]),
        LimitError,
        "too large",
    ),
    "negative dimension": (
        lambda: model_of(RELU, initializer=[onnx.TensorProto(name="w", data_type=1, dims=[-4])]),
        UnsafeFileError,
        "negative",
    ),
    "input without a type": (
        lambda: model_of(RELU, inputs=[onnx.ValueInfoProto(name="x")]),
        InputError,
        "no type",
    ),
    "input without a shape": (
        lambda: model_of(RELU, inputs=[helper.make_tensor_value_info("x", TensorProto.FLOAT, None)]),
        InputError,
        "no type",
    ),
    "work that is not counted": (lambda: branches("MatMul", "x", "w"), InputError, "MatMul"),
    "made twice": (lambda: model_of([*RELU, *RELU]), UnsafeFileError, "two ONNX nodes"),
    "old opset": (lambda: model_of(RELU, opset=11), InputError, "too old"),
    "open dimension": (lambda: model_of(RELU, dims=("n", "length")), InputError, "--sequence-length"),
    "shapes that clash": (
        lambda: model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], initializer=[weight("w", 6, 2)]),
        InputError,
        "inconsistent",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused_with_the_reason(case: str) -> None:
    make, kind, message = HOSTILE[case]
    made = make()
    data = made if isinstance(made, bytes) else made.SerializeToString()
    with pytest.raises(kind, match=message):
        capture_onnx(data)


@pytest.mark.parametrize("data", [b"", b"not onnx", b"\x08\x07" * 5000, b"\x3a" + b"\xff" * 9])
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(CotenantError):
        capture_onnx(data)


def test_a_graph_of_constants_is_refused() -> None:
    """It would be predicted as a job that takes no time."""
    shape = helper.make_tensor("shape", TensorProto.INT64, [1], [4])
    nodes = [
        helper.make_node("Constant", [], ["s"], value=shape),
        helper.make_node("ConstantOfShape", ["s"], ["y"]),
    ]
    with pytest.raises(InputError, match="computes nothing"):
        capture_onnx(model_of(nodes).SerializeToString())


def test_limits_on_size_nodes_and_memory(tmp_path: Path) -> None:
    chain = [helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"]) for i in range(30)]
    chain[0].input[0], chain[-1].output[0] = "x", "y"
    data = model_of(chain).SerializeToString()
    assert len(capture_onnx(data).operators) == 30
    with pytest.raises(LimitError, match="too many nodes"):
        capture_onnx(data, limits=OnnxLimits(nodes=10))
    with pytest.raises(LimitError, match="too large"):
        capture_onnx(data, limits=OnnxLimits(file_bytes=100))
    with pytest.raises(CotenantError):
        capture_onnx(data, limits=OnnxLimits(memory_bytes=2**26))
    with pytest.raises(InputError, match="no file"):
        capture_onnx(tmp_path / "none.onnx")


def test_a_sequence_length_that_no_input_has_is_refused() -> None:
    fixed, open_ = (model_of(RELU, dims=("n", d)).SerializeToString() for d in (4, "length"))
    assert capture_onnx(open_, sequence_length=10).operators[0].output_shape == (1, 10)
    assert capture_onnx(fixed, sequence_length=4).operators[0].output_shape == (1, 4)
    with pytest.raises(InputError, match=r"open for a sequence length.*x \(1, 4\)"):
        capture_onnx(fixed, sequence_length=10)


def test_external_weights_inside_the_folder_are_ignored() -> None:
    graph = capture_onnx(outside("weights/w.bin").SerializeToString(), batch_size=2)
    assert graph.parameter_count == 12
    assert graph.forward_flops == 2 * 2 * 4 * 3


def product(first: int | str, n: int) -> bytes:
    """x (first, 4) times a matrix, times n (n, 1)."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Mul", ["h", "n"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, (first, 4)),
        helper.make_tensor_value_info("n", TensorProto.FLOAT, (n, 1)),
    ]
    made: bytes = model_of(nodes, inputs=inputs, initializer=[weight()]).SerializeToString()
    return made


@pytest.mark.parametrize(("first", "n"), [(8, 1), ("b", 1), (8, 8)])
def test_only_open_dimensions_are_bound_to_a_batch_size(first: int | str, n: int) -> None:
    graph = capture_onnx(product(first, n), batch_size=8)
    assert graph.batch_size == 8
    assert [op.output_shape for op in graph.operators] == [(8, 3), (8, 3)]
    assert graph.host_input_bytes == 4 * (8 * 4 + n)


@pytest.mark.parametrize("n", [1, 4])
def test_another_batch_size_than_the_exported_one_is_refused(n: int) -> None:
    """Nodes inside may have it, too: a Reshape to (4, 3) would keep its four samples."""
    message = (
        rf"fixed batch size: expected batch_size=4, or none, got batch_size=8 for x \(4, 4\), n \({n}, 1\)"
    )
    with pytest.raises(InputError, match=message):
        capture_onnx(product(4, n), batch_size=8)
    assert capture_onnx(product(4, n)).batch_size == 4


def test_inputs_are_named_where_shapes_disagree() -> None:
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        for name, dims in (("x", ("n", 4)), ("z", (3, 3)))
    ]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "z"], ["y"])]
    model = model_of(nodes, inputs=inputs, initializer=[weight()])
    with pytest.raises(InputError, match=r"inconsistent.*the inputs were read as x \(8, 4\), z \(3, 3\)"):
        capture_onnx(model.SerializeToString(), batch_size=8)
