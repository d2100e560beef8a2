"""FlexAttention: how many scores its block mask leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from profiling.capture import capture_module
from profiling.graph import ComputationGraph, Operator

LENGTH, HEADS, WIDTH, SAMPLES = 512, 2, 32, 3
DENSE_FLOPS = 4 * SAMPLES * HEADS * LENGTH**2 * WIDTH


def causal(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return query >= key


def window(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return (query >= key) & (query - key < 128)


class Attention(nn.Module):
    def __init__(
        self, mask: Callable[[Tensor], Any] = lambda x: None, function: Any = flex_attention
    ) -> None:
        super().__init__()
        self.inner = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH)
        self.mask, self.function = mask, function

    def forward(self, x: Tensor) -> Tensor:
        parts = self.inner(x).view(*x.shape[:2], 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
        return self.function(*parts.unbind(), block_mask=self.mask(x))


def captured(model: nn.Module, length: int = LENGTH) -> tuple[ComputationGraph, Operator]:
    graph = capture_module(model, torch.randn(SAMPLES, length, HEADS * WIDTH))
    return graph, next(op for op in graph.operators if op.kind == "attention")


def of(rule: Any, length: int = LENGTH, **options: Any) -> Callable[[Tensor], Any]:
    return lambda x: create_block_mask(rule, None, None, length, length, device=x.device, **options)


@pytest.mark.parametrize("function", [flex_attention, torch.compile(flex_attention)])
def test_it_is_one_operator_like_any_fused_attention(function: Any) -> None:
    graph, op = captured(Attention(function=function))
    assert (op.forward_flops, op.backward_flops) == (DENSE_FLOPS, 2.5 * DENSE_FLOPS)
    assert op.forward_kernel_count == 1
    assert (op.sizes.heads, op.sizes.query_length, op.sizes.head_width) == (HEADS, LENGTH, WIDTH)
    # Queries, keys and values; results and a number per row.
    assert op.bytes_read == 4 * 3 * SAMPLES * HEADS * LENGTH * WIDTH
    assert op.bytes_written == 4 * SAMPLES * HEADS * LENGTH * (WIDTH + 1)
    assert graph.activation_bytes < 4 * SAMPLES * HEADS * LENGTH**2


@pytest.mark.parametrize(
    ("mask", "share"),
    [
        (of(causal), 10 / 16),
        (of(causal, BLOCK_SIZE=256), 3 / 4),
        (of(window), 7 / 16),
        (
            lambda x: create_block_mask(causal, None, None, LENGTH, LENGTH, device=x.device).to(x.device),
            10 / 16,
        ),
    ],
)
def test_masked_blocks_cost_nothing(mask: Callable[[Tensor], Any], share: float) -> None:
    _, op = captured(Attention(mask))
    assert op.forward_flops == pytest.approx(share * DENSE_FLOPS)
    assert op.backward_flops == pytest.approx(2.5 * share * DENSE_FLOPS)
    # A mask that the forward pass moves to the device is read, too.
    assert op.bytes_read == pytest.approx(4 * 3 * SAMPLES * HEADS * LENGTH * WIDTH, rel=1e-3)


def test_a_mask_made_beforehand_is_read() -> None:
    made = create_block_mask(causal, None, None, LENGTH, LENGTH, device="cpu")
    assert captured(Attention(lambda x: made))[1].forward_flops == pytest.approx(10 / 16 * DENSE_FLOPS)


def test_a_mask_by_document_reads_its_tensor() -> None:
    documents = torch.arange(LENGTH) // 128
    mask = of(lambda b, h, q, k: documents[q] == documents[k])
    assert captured(Attention(mask))[1].forward_flops == pytest.approx(DENSE_FLOPS / 4)


def test_a_length_that_is_no_multiple_of_the_block() -> None:
    length = 200
    _, op = captured(Attention(of(causal, length)), length)
    assert op.forward_flops == pytest.approx(3 / 4 * 4 * SAMPLES * HEADS * length**2 * WIDTH)


def test_a_mask_that_reads_the_input_counts_as_full() -> None:
    mask = lambda x: of(lambda b, h, q, k: x[0, q, 0] > x[0, k, 0])(x)  # noqa: E731
    with pytest.warns(UserWarning, match="assumed to be full"):
        assert captured(Attention(mask))[1].forward_flops == DENSE_FLOPS


def test_further_results() -> None:
    def function(*args: Tensor, block_mask: Any) -> Tensor:
        out, more = flex_attention(*args, block_mask=block_mask, return_aux=AuxRequest(lse=True))
        return out.sum() + more.lse.sum()

    assert captured(Attention(function=function))[1].forward_flops == DENSE_FLOPS


def test_torchs_functions_are_put_back() -> None:
    before = flex_attention.__code__, create_block_mask.__code__
    captured(Attention(of(causal)))
    assert (flex_attention.__code__, create_block_mask.__code__) == before
    assert before[0].co_filename.endswith("flex_attention.py")
