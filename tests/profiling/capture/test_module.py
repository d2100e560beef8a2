"""Modules as users write them, and invalid factories."""

import importlib
import math
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops.map import map as higher_order_map
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

from profiling.capture import capture_module, graph_for
from profiling.capture.module import _precision
from profiling.errors import InputError
from profiling.workload import Workload


class BiasedAttention(nn.Module):
    """Attention with a trainable bias per score, like relative positions."""

    def __init__(self, is_trained: bool) -> None:
        super().__init__()
        self.input = nn.Linear(8, 24)
        self.bias = nn.Parameter(torch.zeros(2, 5, 5), requires_grad=is_trained)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.input(x).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=self.bias)


def test_a_trainable_attention_bias_has_a_gradient() -> None:
    trained = capture_module(BiasedAttention(True), torch.randn(3, 5, 8))
    frozen = capture_module(BiasedAttention(False), torch.randn(3, 5, 8))
    bias_bytes = 4 * 2 * 5 * 5
    assert trained.gradient_bytes == trained.parameter_bytes == frozen.gradient_bytes + bias_bytes
    # Written for each sample, read and summed over them.
    assert trained.total("backward_bytes") >= frozen.total("backward_bytes") + 2 * 3 * bias_bytes
    assert trained.backward_flops == frozen.backward_flops


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


@dataclass(frozen=True)
class Record:
    left: Tensor
    right: Tensor


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, pair: Pair | Record) -> Tensor:
        return self.linear(pair.left + pair.right)


@pytest.mark.parametrize("kind", [Pair, Record])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_named_tuples_and_dataclasses_are_preserved(kind: type, precision: str) -> None:
    pair = kind(torch.randn(3, 8), torch.randn(3, 8))
    graph = capture_module(Sum(), {"pair": pair}, workload=Workload("net", precision=precision))
    assert graph.batch_size == 3
    assert graph.forward_flops == 2 * 3 * 8 * 4
    assert graph.host_input_bytes == 2 * 3 * 8 * (4 if precision == "fp32" else 2)
    assert pair.left.device.type == "cpu"


def test_a_module_without_parameters_has_no_backward_pass() -> None:
    graph = capture_module(nn.Sequential(nn.AvgPool2d(2)), torch.randn(3, 4, 8, 8))
    assert [op.kind for op in graph.operators if op.module_path] == ["pooling"]
    assert graph.state_bytes == graph.total("backward_bytes") == 0


def test_a_lazy_module_must_be_initialised_first() -> None:
    model, inputs = nn.Sequential(nn.LazyLinear(4)), torch.randn(3, 8)
    with pytest.raises(InputError, match=r"'0.weight' has no shape yet.*call the module once"):
        capture_module(model, inputs)
    model(inputs)
    assert capture_module(model, inputs).parameter_count == 36


class Experts(nn.Module):
    def __init__(self, is_masked: bool) -> None:
        super().__init__()
        self.router = nn.Linear(8, 2)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.is_masked = is_masked

    def forward(self, x: Tensor) -> list[Tensor]:
        chosen = self.router(x).argmax(-1)
        rows = [chosen == 0, chosen == 1] if self.is_masked else [torch.where(chosen == i)[0] for i in (0, 1)]
        return [expert(x[own]) for expert, own in zip(self.experts, rows, strict=True)]


@pytest.mark.parametrize("is_masked", [False, True])
def test_a_selection_by_value_is_noted(is_masked: bool) -> None:
    with pytest.warns(UserWarning, match="2 selections by value"):
        graph = capture_module(Experts(is_masked), torch.randn(6, 8))
    assert graph.forward_flops == 2 * 6 * 8 * (2 + 2 * 8)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("logits"), "KeyError: 'logits'"),
        (NotImplementedError(), r"NotImplementedError \(test_module.py, line \d+\);"),
        (AssertionError(), r"AssertionError \(test_module.py, line \d+\);"),
    ],
)
def test_any_exception_of_a_model_is_one_line(error: Exception, said: str) -> None:
    def loss(output: Tensor) -> Tensor:
        raise error

    with pytest.raises(InputError, match=f"without data: got .*{said}"):
        capture_module(nn.Linear(8, 4), torch.randn(3, 8), loss=loss)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_refused_with_the_reason() -> None:
    traced = torch.jit.trace(nn.Linear(8, 4), torch.randn(3, 8))
    with pytest.raises(InputError, match=r"TorchScript.*use the original module"):
        capture_module(nn.Sequential(traced), torch.randn(3, 8))


def test_a_wrapper_for_data_parallel_training_is_no_part_of_a_step() -> None:
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        wrapped = capture_module(nn.parallel.DistributedDataParallel(module), torch.randn(3, 8), name="net")
    finally:
        torch.distributed.destroy_process_group()
    assert wrapped.content_hash == capture_module(module, torch.randn(3, 8), name="net").content_hash


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_bag_of_embeddings_reads_its_rows_and_not_the_table(mode: str) -> None:
    bags = torch.zeros(8, 5, dtype=torch.long)
    operator = next(
        op
        for op in capture_module(nn.EmbeddingBag(10**6, 64, mode=mode), bags).operators
        if op.kind == "embedding"
    )
    rows_bytes = 8 * 5 * 64 * 4
    assert rows_bytes <= operator.bytes_read <= 1.1 * rows_bytes
    assert operator.parameter_bytes == 4 * 64 * 10**6
    # The gradient of the table is dense.
    assert operator.backward_bytes >= operator.parameter_bytes


def test_norms_of_embeddings_are_limited_in_the_rows_that_are_read() -> None:
    graph = capture_module(nn.Embedding(10**6, 64, max_norm=1.0), torch.zeros(8, 5, dtype=torch.long))
    limit = next(op for op in graph.operators if op.kind == "gather")
    assert limit.bytes_written == 8 * 5 * 64 * 4
    assert limit.forward_flops == 0


def test_one_sample_suffices_for_the_batch_norms_of_an_inference_job_only() -> None:
    inference = Workload(model="net", mode="inference")

    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))

    graph = capture_module(net(), torch.randn(1, 8), workload=inference)
    assert [op.kind for op in graph.operators if op.module_path] == ["linear", "batch_norm"]
    with pytest.raises(InputError, match="two samples to train"):
        capture_module(net(), torch.randn(1, 8))
    one, two = (
        graph_for(Workload.parse(f"inceptionv3-imagenet:batch_size={n},mode=inference").captured())
        for n in (1, 2)
    )
    assert two.forward_flops == 2 * one.forward_flops


def test_sparse_gradients_are_refused_with_the_option_to_change() -> None:
    with pytest.raises(InputError, match="sparse=False"):
        capture_module(nn.Embedding(10, 4, sparse=True), torch.zeros(2, 3, dtype=torch.long))


class Features(nn.Module):
    """A classifier on features of a network that is not trained."""

    def __init__(self, mode: type) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 8))
        self.classifier = nn.Linear(8, 4)
        self.mode = mode

    def forward(self, x: Tensor) -> Tensor:
        with self.mode():
            features = self.features(x)
        return self.classifier(features.clone())


def test_inference_mode_costs_the_same_as_no_grad() -> None:
    graphs = [
        capture_module(Features(mode), torch.randn(2, 3, 8, 8))
        for mode in (torch.inference_mode, torch.no_grad)
    ]
    assert graphs[0] == graphs[1]
    assert graphs[0].forward_flops == 2 * 2 * (27 * 4 * 36 + 4 * 36 * 8 + 8 * 4)


def test_a_module_in_data_parallel_is_captured_as_its_module() -> None:
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    wrapped = capture_module(nn.DataParallel(module), torch.randn(3, 8), name="net")
    assert wrapped == capture_module(module, torch.randn(3, 8), name="net")


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_module_that_cannot_be_copied_is_refused_with_the_reason() -> None:
    model = nn.Sequential(nn.utils.weight_norm(nn.Linear(8, 4)))
    with pytest.raises(InputError, match=r"cannot be copied.*module:factory"):
        capture_module(model, torch.randn(3, 8))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_inputs_and_buffers_that_are_not_dense_are_refused() -> None:
    model = nn.Linear(8, 4)
    ragged = torch.nested.nested_tensor([torch.randn(n, 8) for n in (2, 3)])
    for tensor, said in ((torch.eye(8).to_sparse(), "sparse_coo"), (ragged, "a nested tensor")):
        with pytest.raises(InputError, match=f"an input is sparse or nested.*{said}"):
            capture_module(model, tensor)
    model.register_buffer("adjacency", torch.eye(8).to_sparse())
    with pytest.raises(InputError, match="'adjacency' is sparse"):
        capture_module(model, torch.randn(3, 8))


FRAME = torch.ones(8)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (lambda y: y * y.max().item(), "pass them as numbers"),
        (lambda y: y * y.detach().cpu().max(), "pass them as numbers"),
        (lambda y: torch.from_numpy(y.detach().numpy()), "pass them as numbers"),
        (lambda y: importlib.import_module("absent_module"), "install it"),
        (lambda y: y.repeat_interleave(y[:, 0].long(), 0), "pass them as numbers"),
        (lambda y: pack_padded_sequence(y[None], y[0, :1].long()).data, "pass them as numbers"),
        (lambda y: y * torch.equal(y, y + 1), "pass them as numbers"),
        (lambda y: y * FRAME, "register a module's own as buffers"),
        (
            lambda y: y * torch.bincount(y.argmax(1), minlength=8),
            r"Meta kernel registered \(test_module.py, line \d+\); torch has no shape rule",
        ),
        (
            lambda y: higher_order_map(torch.sin, y),
            r"HigherOrderOperator map_impl \(test_module.py, line \d+\); .* write a loop in Python",
        ),
        (lambda y: torch.sparse_coo_tensor(y[:2].long(), y[0], (9, 9)).values(), "index_add"),
    ],
    ids=[
        "item",
        "cpu",
        "numpy",
        "import",
        "repeat_interleave",
        "pack",
        "equal",
        "device",
        "operator",
        "map",
        "sparse",
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_what_cannot_be_captured_says_what_to_change(body: Callable[[Tensor], Tensor], said: str) -> None:
    with pytest.raises(InputError, match=said):
        capture_module(nn.Linear(8, 8), torch.randn(3, 8), loss=lambda output: body(output).sum())


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_fourier_transform_in_half_precision_says_to_cast(precision: str) -> None:
    weight = torch.zeros(8, dtype=torch.complex64, device="meta")
    with pytest.raises(InputError, match="cast their input to FP32"):
        capture_module(
            nn.Linear(8, 8),
            torch.randn(4, 8),
            loss=lambda output: torch.einsum("bi,i->b", torch.fft.fft(output), weight).real.sum(),
            workload=Workload("module", precision=precision),
        )


@pytest.mark.parametrize(
    ("dtype", "asked", "precision"),
    [
        (torch.bfloat16, "fp32", "bf16"),
        (torch.float16, "fp32", "fp16"),
        (torch.float64, "fp32", "fp64"),
        (torch.float32, "fp32", "fp32"),
        (torch.bfloat16, "amp", "amp"),
    ],
)
def test_weights_of_another_type_state_the_precision(dtype: torch.dtype, asked: str, precision: str) -> None:
    model, inputs = nn.Linear(8, 4).to(dtype), torch.randn(3, 8, dtype=dtype)
    graph = capture_module(model, inputs, workload=Workload("x", precision=asked))
    assert graph.options["precision"] == precision
    mixed = nn.Sequential(nn.Linear(8, 4).to(dtype), nn.LayerNorm(4, dtype=torch.float32))
    assert _precision(mixed, "fp32") == "fp32"


def test_a_loss_that_is_not_one_number_is_refused() -> None:
    with pytest.raises(InputError, match="take its mean"):
        capture_module(nn.Linear(8, 4), torch.randn(3, 8), loss=lambda output: output)


class Padded(nn.Module):
    """A classifier on an encoder of padded sequences; a frozen one stays in evaluation mode."""

    def __init__(self, is_frozen: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2).requires_grad_(not is_frozen)
        self.classifier = nn.Linear(16, 4)
        self.is_frozen = is_frozen

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        if self.is_frozen:
            self.encoder.eval()
        return self.classifier(self.encoder(x, src_key_padding_mask=padding))


@pytest.mark.parametrize("is_frozen", [False, True])
def test_an_encoder_of_padded_sequences_keeps_them_padded_in_evaluation_mode(is_frozen: bool) -> None:
    graph = capture_module(Padded(is_frozen), (torch.randn(2, 5, 16), torch.zeros(2, 5, dtype=torch.bool)))
    assert graph.forward_activation_bytes > 2 * 5 * 32 * 4
    assert sum(op.kind == "attention" for op in graph.operators) == 2


def test_targets_of_the_ctc_loss_may_be_concatenated() -> None:
    def saved_bytes(*shape: int) -> float:
        def loss(output: Tensor) -> Tensor:
            targets = torch.ones(shape, dtype=torch.long, device=output.device)
            return F.ctc_loss(output.log_softmax(-1), targets, torch.full((3,), 12), torch.full((3,), 4))

        graph = capture_module(nn.Linear(16, 5), torch.randn(12, 3, 16), loss=loss)
        return graph.total("saved_activation_bytes") - 8 * math.prod(shape)

    assert saved_bytes(12) == saved_bytes(3, 4)


def test_reentrant_checkpointing_is_no_reason_for_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    def loss(output: Tensor) -> Tensor:
        return checkpoint(torch.relu, output, use_reentrant=True).mean()

    capture_module(nn.Linear(8, 4), torch.randn(3, 8), loss=loss)
    assert not recwarn.list


class Decoder(nn.Module):
    """Makes its state and outputs in the forward pass, on the default device or on that of the input."""

    def __init__(self, on_default: bool) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(8, 8), nn.Linear(8, 5)
        self.on_default = on_default

    def forward(self, x: Tensor) -> Tensor:
        device = None if self.on_default else x.device
        state, out = torch.zeros(len(x), 8, device=device), torch.zeros(len(x), x.shape[1], 5, device=device)
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
            out[:, step] = self.head(state)
        return out


def test_tensors_made_on_the_default_device() -> None:
    x = torch.randn(4, 3, 8)
    graph = capture_module(Decoder(True), x)
    assert graph.content_hash == capture_module(Decoder(False), x).content_hash
    cells = [op for op in graph.operators if op.kind == "recurrent"]
    assert len(cells) == 3
    assert cells[0].forward_flops == 2 * 4 * 2 * 3 * 8 * 8
    assert cells[1].backward_flops == 1.5 * cells[1].forward_flops  # the data need no gradient


def test_inputs_may_be_any_mapping() -> None:
    inputs = {"pair": Pair(torch.randn(3, 8), torch.randn(3, 8))}
    assert capture_module(Sum(), UserDict(inputs)).content_hash == capture_module(Sum(), inputs).content_hash


def test_what_cannot_be_captured_says_where() -> None:
    class Reading(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            return out * out.mean().item()

    line = Reading.forward.__code__.co_firstlineno + 2
    with pytest.raises(InputError, match=rf"meta tensors \(test_module\.py, line {line}\)"):
        capture_module(Reading(8, 8), torch.randn(3, 8))
