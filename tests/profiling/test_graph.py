"""Graph files of both versions, NumPy columns, and the needs of a forward pass alone."""

from __future__ import annotations

import json
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from profiling.capture import capture_module, capture_zoo
from profiling.errors import InputError
from profiling.graph import ComputationGraph
from profiling.graph_columns import COLUMNS
from profiling.operator_sizes import NO_SIZES, SIZE_COLUMNS, OperatorSizes
from profiling.operators import CONTRACTIONS, DTYPES, KINDS
from profiling.workload import Workload
from profiling.zoo import build


@cache
def captured(spec: str) -> ComputationGraph:
    return capture_zoo(Workload.parse(spec))


@pytest.mark.parametrize("checkpointed", [False, True])
def test_round_trip(checkpointed: bool) -> None:
    graph = captured(
        f"resnet18-cifar:batch_size=2,precision=amp,activation_checkpointing={str(checkpointed).lower()}"
    )
    again = ComputationGraph.from_dict(json.loads(json.dumps(graph.to_dict())))
    assert again == graph
    assert again.content_hash == graph.content_hash
    assert ("recomputed_flops" in graph.to_dict()["operators"]) == checkpointed


def test_changing_the_object_does_not_change_the_graph() -> None:
    graph = captured("resnet18-cifar:batch_size=2")
    graph.to_dict()["options"]["precision"] = "fp16"
    assert graph.options["precision"] != "fp16"


def version_1(graph: ComputationGraph) -> dict:
    body = graph.to_dict()
    body["version"] = 1
    del body["forward_activation_bytes"]
    for name in ("sizes", "input_dtype", "weight_dtype", "forward_kernel_count", "training_only"):
        del body["operators"][name]
    return body


def test_files_of_version_1_are_read() -> None:
    graph = captured("lstm-wikitext2:batch_size=2,sequence_length=4")
    old = ComputationGraph.from_dict(version_1(graph))
    assert old.step_flops == graph.step_flops
    assert old.step_bytes == graph.step_bytes
    assert all(op.sizes is NO_SIZES and op.input_dtype == "" for op in old.operators)
    assert [op.forward_kernel_count for op in old.operators] == [op.kernel_count / 3 for op in old.operators]
    assert [op.kind for op in old.operators if op.training_only] == ["dropout", "dropout", "loss"]
    assert old.to_dict()["version"] == 2
    assert ComputationGraph.from_dict(old.to_dict()) == old


def spoil(body: dict, column: str, value: object) -> None:
    body["operators"][column][0] = value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda body: body.update(version=3), "unsupported version"),
        (lambda body: body["operators"]["sizes"]["gemm_m"].pop(), "damaged"),
        (lambda body: body["operators"]["sizes"].update(colour=[]), "damaged"),
        (lambda body: body["operators"].pop("sizes"), "damaged"),
        (lambda body: body["operators"].update(sizes=["gemm_m"]), "damaged"),
        (lambda body: body.update(activation_bytes=float("nan")), "activation_bytes"),
        (lambda body: body.update(optimizer_flops=[]), "optimizer_flops"),
        (lambda body: body.update(parameter_bytes=-1.0), "parameter_bytes"),
        (lambda body: body.update(batch_size=None), "batch_size.*integers from 1"),
        (lambda body: body.update(options=[]), "options"),
        (lambda body: body.update(options={"frozen_prefix": "2"}), "options.frozen_prefix"),
        (lambda body: body.update(options={"gradient_accumulation": [2]}), "options.gradient_accumulation"),
        (lambda body: body.update(options={"processes": -1}), "options.processes"),
        (lambda body: body["layers"].append(3), "layers"),
        (lambda body: body["edges"].append([0, 1, float("inf")]), "edges"),
        (lambda body: body["edges"].append([0, float("inf"), 1.0]), "edges"),
        (lambda body: body["edges"].append([0.5, 1, 1.0]), "edges"),
        (lambda body: spoil(body, "forward_flops", None), "forward_flops.*numbers from 0 to 1e"),
        (lambda body: spoil(body, "kernel_count", -4.0), "kernel_count"),
        (lambda body: spoil(body, "repeat", 1.5), "repeat"),
        (lambda body: spoil(body, "layer_index", -2), "layer_index"),
        (lambda body: spoil(body, "layer_index", 10**15), "layer_index.*integers from -1 to"),
        (lambda body: spoil(body, "forward_flops", 1e31), "forward_flops"),
        (lambda body: body.update(gradient_bytes=1e308), "gradient_bytes"),
        (lambda body: body["edges"].append([0, 1, 10**400]), "edges"),
        (lambda body: spoil(body, "output_shape", [10**400]), "output_shape"),
        (lambda body: spoil(body, "output_shape", [10**9] * 20), "output_shape"),
        (lambda body: spoil(body, "output_shape", [9] * 10**6), "output_shape"),
        (lambda body: spoil(body, "output_shape", [-1]), "output_shape"),
        (lambda body: spoil(body, "output_shape", [float("inf")]), "damaged"),
        (lambda body: spoil(body, "kind", 3), "kind.*text"),
        (lambda body: spoil(body, "tensor_core", "yes"), "tensor_core"),
    ],
)
def test_damaged_files_are_refused(change, message: str) -> None:  # type: ignore[no-untyped-def]
    body = captured("ppo-lunarlander").to_dict()
    change(body)
    with pytest.raises(InputError, match=message):
        ComputationGraph.from_dict(body)


@pytest.mark.parametrize(
    "spec",
    [
        "resnet18-cifar:batch_size=2",
        "mobilenetv3small-imagenet:batch_size=2",
        "cyclegan-256",
        "unet3d-kits19:batch_size=1",
        "bert-base-squad:batch_size=2,sequence_length=16",
        "gpt-125m:batch_size=2,sequence_length=16",
        "pointnet-2500:batch_size=2",
        "dcgan-64:batch_size=4",
    ],
)
def test_products_multiply_out_to_the_flops(spec: str) -> None:
    for op in captured(spec).operators:
        if op.kind in CONTRACTIONS:
            sizes = op.sizes
            product = 2 * sizes.gemm_batch * sizes.gemm_m * sizes.gemm_n * sizes.gemm_k
            assert op.forward_flops == product * (2 if op.kind == "attention" else 1), op


class Windows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 8, (3, 5), stride=(2, 1), padding=(1, 4), dilation=(1, 2), groups=2)
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.norm = nn.GroupNorm(3, 6)
        self.pool = nn.MaxPool2d(3, 2)
        self.line = nn.Conv1d(6, 6, 3, groups=6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.norm(self.up(self.first(x))))
        return self.line(x.flatten(2)).softmax(1).cumsum(-1)


def test_sizes_of_windows_and_statistics() -> None:
    graph = capture_module(Windows(), torch.empty(2, 4, 8, 8))
    by_kind = {op.kind: op.sizes for op in graph.operators if not op.training_only}
    assert by_kind["convolution"] == OperatorSizes(
        gemm_batch=2, gemm_m=2 * 4 * 8, gemm_n=4, gemm_k=2 * 15, kernel_depth=1, kernel_height=3, kernel_width=5,
        stride_height=2, stride_width=1, dilation=2, groups=2, input_channels=4, output_channels=8,
        input_depth=1, input_height=8, input_width=8,
    )  # fmt: skip
    up = by_kind["transposed_convolution"]
    assert (up.gemm_batch, up.gemm_m, up.gemm_n, up.gemm_k) == (1, 2 * 4 * 8, 6 * 4, 8)
    assert (up.input_channels, up.output_channels, up.stride_height) == (8, 6, 2)
    norm = by_kind["group_norm"]
    assert (norm.reduction_size, norm.reduction_count, norm.groups) == (2 * 8 * 16, 2 * 3, 3)
    pool = by_kind["pooling"]
    assert (pool.reduction_size, pool.reduction_count, pool.stride_width) == (9, 2 * 6 * 3 * 7, 2)
    line = by_kind["depthwise_convolution"]
    assert (line.kernel_height, line.kernel_width, line.input_height, line.input_width) == (1, 3, 1, 21)
    assert (by_kind["softmax"].reduction_size, by_kind["softmax"].reduction_count) == (6, 2 * 19)
    assert (by_kind["reduction"].reduction_size, by_kind["reduction"].reduction_count) == (19, 12)


def test_attention_recurrence_and_tables() -> None:
    (attention, *_) = [op for op in captured("gpt-125m:batch_size=2,sequence_length=16").operators if op.kind == "attention"]  # fmt: skip
    sizes = attention.sizes
    assert (sizes.heads, sizes.query_length, sizes.key_length, sizes.head_width) == (12, 16, 16, 64)
    assert sizes.gemm_batch == 24
    graph = captured("lstm-wikitext2:batch_size=3,sequence_length=5")
    by_kind = {op.kind: op for op in graph.operators}
    cell = by_kind["recurrent"].sizes
    assert (cell.steps, cell.gemm_batch, cell.gemm_m, cell.gemm_n, cell.gemm_k) == (5, 2, 3, 800, 200)
    assert (by_kind["embedding"].sizes.table_rows, by_kind["embedding"].sizes.table_width) == (33278, 200)
    assert (by_kind["embedding"].input_dtype, by_kind["embedding"].weight_dtype) == ("int64", "float32")


class Resized(nn.Module):
    def __init__(self, mode: str, antialias: bool = False) -> None:
        super().__init__()
        self.first, self.mode, self.antialias = nn.Conv2d(3, 8, 1), mode, antialias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(self.first(x), scale_factor=2, mode=self.mode, antialias=self.antialias)


@pytest.mark.parametrize(
    ("mode", "antialias", "steps"),
    [
        ("bilinear", False, 2 * 8),
        ("bicubic", False, 2 * 8),
        ("bilinear", True, 0),
        ("bicubic", True, 0),
        ("nearest", False, 0),
        ("nearest-exact", False, 0),
    ],
)
def test_threads_that_interpolate_go_through_samples_and_channels(
    mode: str, antialias: bool, steps: int
) -> None:
    graph = capture_module(Resized(mode, antialias), torch.empty(2, 3, 7, 7))
    (resize,) = [op.sizes for op in graph.operators if op.kind == "resize"]
    assert (resize.steps, resize.input_channels, resize.input_height) == (steps, 8, 7)


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (Windows(), torch.empty(2, 4, 8, 8)),
        (Resized("bilinear"), torch.empty(2, 3, 7, 7)),
        (nn.Sequential(nn.Embedding(9, 8), nn.LayerNorm(8), nn.Linear(8, 6)), torch.zeros(2, 3, dtype=torch.long)),
    ],
)  # fmt: skip
def test_export_gives_the_same_sizes(model: nn.Module, inputs: torch.Tensor) -> None:
    recorded = [op for op in capture_module(model, inputs).operators if not op.training_only]
    static = [op for op in capture_module(model, inputs, static=True).operators if not op.training_only]
    assert [op.kind for op in static] == [op.kind for op in recorded]
    assert [op.sizes for op in static] == [op.sizes for op in recorded]
    assert [op.weight_dtype for op in static] == [op.weight_dtype for op in recorded]


def test_columns_match_the_operators() -> None:
    graph = captured("resnet18-cifar:batch_size=2,precision=amp")
    columns = graph.columns
    assert set(columns) == set(COLUMNS)
    assert {len(column) for column in columns.values()} == {len(graph.operators)}
    for i, op in enumerate(graph.operators):
        assert KINDS[int(columns["kind"][i])] == op.kind
        assert DTYPES[int(columns["dtype"][i])] == op.dtype
        assert columns["forward_flops"][i] == op.forward_flops
        assert all(columns[name][i] == getattr(op.sizes, name) for name in SIZE_COLUMNS)


class Tail(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(16, 16), nn.Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.linear(x).relu())


# What a forward pass alone needs: inference is a mask (`training_only`) over the graph of a step.
FORWARD_COLUMNS = (
    "forward_flops",
    "bytes_read",
    "bytes_written",
    "parameter_bytes",
    "forward_kernel_count",
    "tensor_core",
    "repeat",
    "training_only",
)


def test_forward_columns_equal_those_of_inference() -> None:
    """A masked training graph compared with a recording without trainable parameters and loss."""
    graph = capture_module(Tail(), torch.empty(4, 16))
    frozen = Tail().eval().requires_grad_(False)
    alone = capture_module(frozen, torch.empty(4, 16))
    mask = graph.columns["training_only"] == 0
    expected = alone.columns["training_only"] == 0
    for name in FORWARD_COLUMNS:
        assert graph.columns[name][mask].tolist() == alone.columns[name][expected].tolist(), name
    assert alone.total("backward_flops") == 0


def test_forward_activations_equal_those_of_a_real_forward_pass() -> None:
    """Peak of live tensors by storage, on the CPU in evaluation mode without gradients."""
    import weakref

    from torch.utils._python_dispatch import TorchDispatchMode

    class Live(TorchDispatchMode):
        sizes: dict[int, int]
        peak = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, tuple) else (out,):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self.sizes:
                    self.sizes[storage.data_ptr()] = storage.nbytes()
                    weakref.finalize(storage, self.sizes.pop, storage.data_ptr(), None)
                    self.peak = max(self.peak, sum(self.sizes.values()))
            return out

    spec = "resnet18-cifar:batch_size=2"
    job = build(Workload.parse(spec), "cpu")
    model = job.model.eval()
    held = [*model.parameters(), *model.buffers(), *job.batch.values()]
    live = Live()
    live.sizes = {t.untyped_storage().data_ptr(): 0 for t in held}
    with torch.no_grad(), live:
        model(job.batch["image"])
    inputs = sum(t.nbytes for t in job.batch.values())
    assert captured(spec).forward_activation_bytes == pytest.approx(live.peak + inputs, rel=0.02)
    assert captured(spec).forward_activation_bytes < captured(spec).activation_bytes
