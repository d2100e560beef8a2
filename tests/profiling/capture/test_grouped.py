"""Products by groups, as layers of experts compute them (`torch.nn.functional.grouped_mm`)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from profiling.capture import capture_module
from profiling.graph import ComputationGraph
from profiling.workload import Workload

TOKENS, EXPERTS, WIDTH, HIDDEN = 64, 4, 32, 48


class Experts(nn.Module):
    """Tokens sorted by expert; all experts have as many."""

    def __init__(self, loop: bool = False) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH, bias=False)
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN))
        self.loop = loop

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        x = self.inner(x)
        if self.loop:
            return torch.cat([part @ w for part, w in zip(x.chunk(EXPERTS), self.weight, strict=True)])
        # Autocast leaves this product alone, so libraries cast its input to the type of the weights.
        return nn.functional.grouped_mm(x.to(self.weight.dtype), self.weight, offs=ends)


class Batched(nn.Module):
    """Without offsets: as many products as there are matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.grouped_mm(x, self.weight)


ROWS = torch.randn(TOKENS, WIDTH), torch.arange(1, EXPERTS + 1, dtype=torch.int32) * (TOKENS // EXPERTS)


def captured(
    model: nn.Module, *inputs: Tensor, precision: str = "fp32", static: bool = False
) -> ComputationGraph:
    workload = Workload("net", TOKENS, precision=precision)
    return capture_module(model, inputs, workload=workload, static=static)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "amp"])
def test_as_much_arithmetic_as_expert_by_expert(precision: str) -> None:
    grouped = captured(Experts(), *ROWS, precision=precision)
    looped = captured(Experts(loop=True), *ROWS, precision=precision)
    assert grouped.forward_flops == looped.forward_flops
    assert grouped.backward_flops == looped.backward_flops
    assert grouped.gradient_bytes == looped.gradient_bytes
    (op,) = (op for op in grouped.operators if op.parameter_bytes and "inner" not in op.name)
    assert op.kind == "linear"
    assert (op.sizes.gemm_batch, op.sizes.gemm_m) == (EXPERTS, TOKENS // EXPERTS)
    assert (op.sizes.gemm_n, op.sizes.gemm_k) == (HIDDEN, WIDTH)
    assert op.dtype == {"bf16": "bfloat16", "fp16": "float16"}.get(precision, "float32")
    kernels = 1 if precision == "bf16" else EXPERTS
    assert (op.forward_kernel_count, op.kernel_count) == (kernels, 3 * kernels)


@pytest.mark.parametrize("static", [False, True])
def test_without_offsets(static: bool) -> None:
    graph = captured(Batched(), torch.randn(EXPERTS, TOKENS, WIDTH), static=static)
    assert graph.forward_flops == 2 * EXPERTS * TOKENS * WIDTH * HIDDEN


class Outer(nn.Linear):
    """Two matrices whose shared dimension, the tokens, is divided into groups."""

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        return nn.functional.grouped_mm(x.t(), super().forward(x), offs=ends)


def test_groups_of_what_is_summed() -> None:
    graph = captured(Outer(WIDTH, HIDDEN), *ROWS)
    (op,) = (op for op in graph.operators if op.sizes.gemm_batch > 1)
    sizes = op.sizes
    assert (sizes.gemm_batch, sizes.gemm_m, sizes.gemm_n) == (EXPERTS, WIDTH, HIDDEN)
    assert sizes.gemm_k == TOKENS // EXPERTS
    assert op.forward_flops == 2 * sizes.gemm_batch * sizes.gemm_m * sizes.gemm_n * sizes.gemm_k


def test_static_experts() -> None:
    recorded, static = (captured(Experts(), *ROWS, static=static) for static in (False, True))
    assert static.forward_flops == recorded.forward_flops
    assert static.backward_flops == recorded.backward_flops
