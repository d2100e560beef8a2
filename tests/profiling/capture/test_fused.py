"""Which operators count as one kernel, and which are computed in parts, as torch does on a GPU."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from profiling.capture import capture_module
from profiling.graph import ComputationGraph
from profiling.workload import Workload

BATCH, TOKENS, HEADS, WIDTH = 2, 12, 2, 8


class Attention(nn.Module):
    """Attention within windows; one window has no dimension of its own."""

    def __init__(self, windows: int, heads: int = HEADS) -> None:
        super().__init__()
        self.windows, self.heads = windows, heads
        self.input = nn.Linear(heads * WIDTH, 3 * heads * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        shape = (BATCH, self.windows, TOKENS // self.windows, 3, self.heads, WIDTH)
        parts = self.input(x).view(shape).permute(3, 0, 4, 1, 2, 5)
        query, key, value = parts[:, :, :, 0] if self.windows == 1 else parts
        if self.heads == 1:
            query, key, value = query[:, 0], key[:, 0], value[:, 0]
        return F.scaled_dot_product_attention(query, key, value)


def capture(module: nn.Module, width: int, precision: str = "fp32") -> ComputationGraph:
    return capture_module(
        module, torch.randn(BATCH, TOKENS, width), workload=Workload("net", precision=precision)
    )


def test_attention_over_four_dimensions_is_one_kernel() -> None:
    graph = capture(Attention(1), HEADS * WIDTH)
    assert [op.kind for op in graph.operators if op.kind in ("attention", "matmul", "softmax")] == [
        "attention"
    ]


class Block(nn.Module):
    """Attention whose heads are joined again, as in any transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.output = Attention(1), nn.Linear(HEADS * WIDTH, HEADS * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.attention(x).transpose(1, 2).reshape(x.shape))


def test_joining_the_heads_takes_no_copy() -> None:
    """Fused kernels write all heads of a token together, and gradients likewise."""
    (op,) = (op for op in capture(Block(), HEADS * WIDTH).operators if op.kind == "attention")
    values, sums = BATCH * TOKENS * HEADS * WIDTH, BATCH * TOKENS * HEADS
    assert (op.forward_kernel_count, op.kernel_count) == (1, 4)
    assert op.bytes_read == 4 * 3 * values
    assert op.bytes_written == op.saved_activation_bytes == 4 * (values + sums)
    # Reads what was saved and the gradient of the output, writes three gradients.
    assert op.backward_bytes == 4 * (8 * values + sums)


@pytest.mark.parametrize(("windows", "heads"), [(3, HEADS), (1, 1)])
def test_attention_over_other_dimensions_keeps_the_scores(windows: int, heads: int) -> None:
    graph = capture(Attention(windows, heads), heads * WIDTH)
    kinds = [op.kind for op in graph.operators if op.kind in ("attention", "matmul", "softmax")]
    assert kinds == ["matmul", "softmax", "matmul"]
    tokens = TOKENS // windows
    scores = BATCH * heads * windows * tokens * tokens
    softmax = next(op for op in graph.operators if op.kind == "softmax")
    assert softmax.saved_activation_bytes == 4 * scores
    products = 2 * 2 * scores * WIDTH
    assert graph.forward_flops == products + 2 * BATCH * TOKENS * 3 * (heads * WIDTH) ** 2


def test_attention_in_parts_is_in_full_precision_under_amp() -> None:
    graph = capture(Attention(3), HEADS * WIDTH, "amp")
    assert {op.input_dtype for op in graph.operators if op.kind in ("matmul", "softmax")} == {"float32"}
    assert {op.dtype for op in graph.operators if op.kind == "linear"} == {"float16"}


@pytest.mark.parametrize("precision", ["fp32", "amp", "bf16"])
def test_an_rms_norm_is_one_kernel_like_a_layer_norm(precision: str) -> None:
    graphs = [
        capture(nn.Sequential(nn.Linear(8, 16), norm(16), nn.Linear(16, 4)), 8, precision)
        for norm in (nn.RMSNorm, nn.LayerNorm)
    ]
    rms, layer = ([op for op in graph.operators if op.module_path.startswith("1")] for graph in graphs)
    assert [op.kind for op in rms] == [op.kind for op in layer] == ["layer_norm"]
    assert rms[0].kernel_count == layer[0].kernel_count
    assert rms[0].sizes == layer[0].sizes
    # Neither mean nor bias.
    assert rms[0].parameter_bytes == layer[0].parameter_bytes / 2
    assert layer[0].backward_bytes * 0.8 < rms[0].backward_bytes < layer[0].backward_bytes


class MixedNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 16)
        self.weight = nn.Parameter(torch.ones(16, dtype=torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(self.linear(x), (16,), self.weight)


def test_an_rms_norm_whose_weight_has_another_type_is_computed_in_parts() -> None:
    kinds = {op.kind for op in capture(MixedNorm(), 8).operators}
    assert "layer_norm" not in kinds
    assert "elementwise" in kinds


class Loop(nn.Module):
    """A cell that goes over time (the first dimension) from a state of zeros, behind a layer if its input is trained."""

    def __init__(self, cell: type[nn.RNNCellBase], behind_layer: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16) if behind_layer else nn.Identity()
        self.cell = cell(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        state, outputs = None, []
        for step in self.layer(x):
            state = self.cell(step, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outputs)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("behind_layer", [False, True])
@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_flops_of_a_cell_are_those_that_torch_counts(
    cell: type[nn.RNNCellBase], behind_layer: bool, static: bool
) -> None:
    module, x = Loop(cell, behind_layer), torch.randn(4, 3, 16)
    with FlopCounterMode(display=False) as forward:
        loss = module(x).mean()
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    graph = capture_module(module, x, static=static)
    assert graph.forward_flops == forward.get_total_flops()
    assert graph.backward_flops == backward.get_total_flops()


@pytest.mark.parametrize("static", [False, True])
def test_gradients_of_a_recurrent_layer_are_those_that_cudnn_computes(static: bool) -> None:
    layer, x = nn.LSTM(16, 16), torch.randn(4, 3, 16)
    assert (graph := capture_module(layer, x, static=static)).backward_flops == 2 * graph.forward_flops
    behind = nn.Sequential(nn.Linear(16, 16, bias=False), layer.requires_grad_(False))
    graph = capture_module(behind, x, static=static)
    assert graph.backward_flops == graph.forward_flops


@pytest.mark.parametrize("cell", [nn.LSTM, nn.RNN, nn.LSTMCell, nn.GRUCell])
def test_frozen_weights_of_a_recurrent_layer_have_no_gradients_in_memory(cell: type[nn.Module]) -> None:
    layer = cell(16, 256)
    model = nn.Sequential(nn.Linear(16, 16), layer.requires_grad_(False))
    weights = 4 * sum(p.numel() for p in layer.parameters())
    assert capture_module(model, torch.randn(1, 16)).activation_bytes < 0.1 * weights
    assert capture_module(nn.Sequential(cell(16, 256)), torch.randn(1, 16)).activation_bytes > weights


def test_a_projected_lstm_keeps_its_gates_for_the_backward_pass() -> None:
    x = torch.randn(4, 3, 16)
    plain, projected = (capture_module(nn.LSTM(16, 32, proj_size=size), x) for size in (0, 8))
    saved = [graph.operators[0].saved_activation_bytes for graph in (plain, projected)]
    # At every position: gates, cell, hidden state before and, if there is one, after its projection; and the output.
    assert saved[0] == 4 * 12 * (6 * 32 + 32)
    assert saved[1] == 4 * 12 * (6 * 32 + 8 + 8)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_static_capture_has_the_kernels_of_every_step(kind: type[nn.RNNBase], bidirectional: bool) -> None:
    layer, x = kind(16, 16, 2, bidirectional=bidirectional, batch_first=True), torch.randn(4, 30, 16)
    recorded, static = (capture_module(layer, x, static=s).operators[0] for s in (False, True))
    layers = 4 if bidirectional else 2
    assert static.forward_kernel_count == layers * (1 + 2 * 30)
    assert static.kernel_count - static.forward_kernel_count == 4 * layers
    # A recording fills the first state, too, and expands the gradient.
    assert static.kernel_count <= recorded.kernel_count <= static.kernel_count + 8
    assert static.sizes == recorded.sizes
