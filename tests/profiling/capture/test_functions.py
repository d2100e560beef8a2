from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from profiling.capture.functions import fused_functions

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "x ** 2": lambda x: x**2,
    "2 ** x": lambda x: 2**x,
    "1 / x": lambda x: 1 / x,
    "square": lambda x: x.square(),
    "logsumexp": lambda x: x.logsumexp(1),
    "norm": lambda x: x.norm(),
    "linalg.norm": lambda x: torch.linalg.norm(x, dim=-1),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "rms_norm": lambda x: F.rms_norm(x, (4,)),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "softmax": lambda x: x.softmax(1),
    "nearest": lambda x: F.interpolate(x[None, None], scale_factor=2),
    "bilinear": lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
}


@pytest.mark.parametrize("name", CALLS)
def test_autocast_runs_what_overflows_in_full_precision(name: str) -> None:
    x = torch.empty(2, 4, device="meta", dtype=torch.float16)
    with fused_functions(torch.float16):
        assert CALLS[name](x).dtype == torch.float32


@pytest.mark.parametrize("call", [F.gelu, F.relu, lambda x: x * 2, lambda x: x.mean(), lambda x: x.square_()])
def test_autocast_leaves_the_rest_in_the_type_of_its_input(call: Callable[[Tensor], Tensor]) -> None:
    x = torch.empty(2, 4, device="meta", dtype=torch.float16)
    with fused_functions(torch.float16):
        assert call(x).dtype == torch.float16


@pytest.mark.parametrize("call", [lambda x: x @ x.T, lambda x: torch.einsum("ab,cb->ac", x, x)])
def test_autocast_multiplies_in_half_precision(call: Callable[[Tensor], Tensor]) -> None:
    with fused_functions(torch.float16):
        assert call(torch.empty(2, 4, device="meta")).dtype == torch.float16
