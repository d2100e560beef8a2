"""Shapes that are computed once and then reused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from profiling.capture import capture_module, meta_cache


class Block(nn.Module):
    def __init__(self, body: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 4)
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(self.first(x) * 2))


def resized(x: Tensor) -> Tensor:
    with torch.no_grad():
        rows = torch.add(x, 1, out=torch.empty(0, device=x.device))
    return x + rows


@pytest.mark.parametrize(
    "body",
    [
        lambda x: x.unsqueeze_(1).squeeze_(1),
        lambda x: x.t_().t(),
        lambda x: x.transpose_(0, 1).transpose_(0, 1),
        resized,
    ],
    ids=["squeeze_", "t_", "transpose_", "out"],
)
def test_operators_that_change_the_shape_of_an_argument_run_every_time(
    body: Callable[[Tensor], Tensor],
) -> None:
    meta_cache._entries.clear()
    first, again = (capture_module(Block(body), torch.randn(8, 16)) for _ in range(2))
    assert first == again
    assert first.forward_activation_bytes > 0


@pytest.mark.filterwarnings("error")
def test_a_change_of_shape_in_place_is_a_view() -> None:
    plain, changed = (
        capture_module(Block(body), torch.randn(8, 16)).operators
        for body in (lambda x: x, lambda x: x.unsqueeze_(1).squeeze_(1))
    )
    assert [(op.kind, op.forward_flops, op.bytes_read) for op in changed] == [
        (op.kind, op.forward_flops, op.bytes_read) for op in plain
    ]


def test_types_follow_the_default_type() -> None:
    before = torch.get_default_dtype()
    types = []
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            out = meta_cache.run(torch.ops.aten.full.default, ([4], 1.5), {"device": torch.device("meta")})
            types.append(out.dtype)
        finally:
            torch.set_default_dtype(before)
    assert types == [torch.float32, torch.float64]
