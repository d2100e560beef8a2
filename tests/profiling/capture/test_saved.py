"""What operators keep for the backward pass, against steps on the CPU and what torch's CUDA kernels keep."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.capture import capture_module
from profiling.training import PARAMETER_TYPES
from profiling.workload import Workload

BATCH, TOKENS, HEADS, WIDTH = 2, 12, 2, 8
ALL = HEADS * WIDTH


def kept_bytes(module: nn.Module, x: Tensor) -> int:
    """Distinct storages that a step on the CPU keeps, without parameters, buffers and the input."""
    own = {t.untyped_storage().data_ptr() for t in (*module.parameters(), *module.buffers(), x)}
    kept: dict[int, Tensor] = {}  # alive, so that no address is reused

    def pack(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        module(x).mean()
    return sum(t.untyped_storage().nbytes() for place, t in kept.items() if place not in own)


class Attention(nn.Module):
    """Attention whose heads, laid out in memory in some order, are joined again."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.input, self.output, self.order = nn.Linear(ALL, 3 * ALL), nn.Linear(ALL, ALL), order

    def forward(self, x: Tensor) -> Tensor:
        parts = self.input(x).view(BATCH, TOKENS, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
        if self.order == "heads first":  # as rotary embeddings that concatenate halves make them
            parts = parts.contiguous()
        out = F.scaled_dot_product_attention(*parts).transpose(1, 2)
        return self.output(out.reshape(x.shape))


class SelfAttention(nn.Module):
    """torch's own, whose query has the tokens first in memory, then the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(ALL, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x, x, x, need_weights=False)[0]
        return out


@pytest.mark.parametrize(
    "model",
    [Attention("tokens first"), Attention("heads first"), SelfAttention()],
    ids=["tokens first", "heads first", "torch"],
)
def test_attention_in_half_precision_is_laid_out_as_its_query(model: nn.Module) -> None:
    """So joining the heads takes a copy only where the query's are apart; torch's kernels on the CPU do likewise."""
    x = torch.randn(BATCH, TOKENS, ALL)
    graph = capture_module(model, x, workload=Workload("net", precision="bf16"))
    kept = kept_bytes(model.to(PARAMETER_TYPES["bf16"]), x.bfloat16())
    assert graph.total("saved_activation_bytes") == pytest.approx(kept, abs=64)  # and the loss


@pytest.mark.parametrize(
    ("model", "copies"), [(Attention("heads first"), 0), (SelfAttention(), 1)], ids=["heads first", "torch"]
)
def test_attention_in_full_precision_has_the_heads_of_a_token_together(model: nn.Module, copies: int) -> None:
    """The memory-efficient kernel writes (batch, length, heads, width), whatever its inputs are laid out as."""
    graph = capture_module(model, torch.randn(BATCH, TOKENS, ALL))
    (op,) = (op for op in graph.operators if op.kind == "attention")
    values, sums = BATCH * TOKENS * ALL, BATCH * TOKENS * HEADS
    assert op.saved_activation_bytes == 4 * (values * (1 + copies) + sums)


@pytest.mark.parametrize(("cell", "widths"), [(nn.GRUCell, 3 + 3 + 5 + 1), (nn.LSTMCell, 4 + 4 + 4 + 1 + 1)])
def test_a_cell_keeps_both_products_and_a_workspace(cell: type[nn.RNNCellBase], widths: int) -> None:
    """As `ThnnFusedGruCellBackward0` and `ThnnFusedLstmCellBackward0` do, which no build without CUDA runs.

    Of each step: the gates of the input and of the state, the workspace, the new state, and an LSTM's new cell state.
    """

    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = cell(ALL, WIDTH), nn.Linear(WIDTH, 1)

        def forward(self, x: Tensor) -> Tensor:
            state = None
            for step in x.unbind(1):
                state = self.cell(step, state)
            out: Tensor = self.head(state[0] if isinstance(state, tuple) else state)
            return out

    graph = capture_module(Steps(), torch.randn(BATCH, TOKENS, ALL))
    cells = [op for op in graph.operators if op.kind == "recurrent"]
    assert len(cells) == TOKENS
    assert all(op.saved_activation_bytes == 4 * BATCH * widths * WIDTH for op in cells[1:])


def test_a_decoder_keeps_the_states_that_it_hands_on() -> None:
    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(WIDTH, WIDTH, 3)

        def forward(self, x: Tensor) -> Tensor:
            state = None
            for step in x.split(1):
                out, state = self.layer(step, state)
            return out

    _, *others, last = capture_module(Decoder(), torch.randn(5, BATCH, WIDTH)).operators[:5]
    layers = 3 * BATCH * WIDTH
    # At the last step nothing reads the state.
    assert [op.saved_activation_bytes for op in others] == 3 * [last.saved_activation_bytes + 4 * layers]


def test_a_batch_norm_of_a_transposed_sequence_makes_it_dense() -> None:
    """As cuDNN wants it, and as torch returns it on the CPU; so each layer behind it copies its input."""

    class Forecaster(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(ALL, ALL) for _ in range(4))
            self.norm = nn.BatchNorm1d(ALL)

        def forward(self, x: Tensor) -> Tensor:
            first, *others = self.layers
            x = self.norm(first(x).transpose(1, 2)).transpose(1, 2)
            return torch.stack([layer(x) for layer in others])

    x = torch.randn(BATCH, TOKENS, ALL)
    graph, kept = capture_module(Forecaster(), x), kept_bytes(Forecaster(), x)
    assert graph.total("saved_activation_bytes") == pytest.approx(kept, abs=64)


def test_a_batch_norm_may_get_its_arguments_by_name() -> None:
    class Named(nn.BatchNorm1d):
        def forward(self, x: Tensor) -> Tensor:
            return torch.batch_norm(
                input=x, weight=self.weight, bias=self.bias, running_mean=self.running_mean,
                running_var=self.running_var, training=True, momentum=0.1, eps=self.eps, cudnn_enabled=True,
            )  # fmt: skip

    x = torch.randn(BATCH, ALL, TOKENS)
    graphs = [capture_module(layer(ALL), x) for layer in (Named, nn.BatchNorm1d)]
    assert graphs[0].total("saved_activation_bytes") == graphs[1].total("saved_activation_bytes")
