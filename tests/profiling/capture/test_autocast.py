from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.capture import capture_module
from profiling.capture.autocast import TO_FLOAT, TO_HALF, TO_WIDEST
from profiling.capture.functions import fused_functions
from profiling.workload import Workload

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
def test_autocast_runs_overflowing_operators_in_full_precision(name: str) -> None:
    x = torch.empty(2, 4, device="meta", dtype=torch.float16)
    with fused_functions(torch.float16):
        assert CALLS[name](x).dtype == torch.float32


@pytest.mark.parametrize("call", [F.gelu, F.relu, lambda x: x * 2, lambda x: x.mean(), lambda x: x.square_()])
def test_autocast_keeps_other_operators_in_their_input_type(call: Callable[[Tensor], Tensor]) -> None:
    x = torch.empty(2, 4, device="meta", dtype=torch.float16)
    with fused_functions(torch.float16):
        assert call(x).dtype == torch.float16


@pytest.mark.parametrize("call", [lambda x: x @ x.T, lambda x: torch.einsum("ab,cb->ac", x, x)])
def test_autocast_multiplies_in_half_precision(call: Callable[[Tensor], Tensor]) -> None:
    with fused_functions(torch.float16):
        assert call(torch.empty(2, 4, device="meta")).dtype == torch.float16


MIXED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "addcmul": lambda wide, half: torch.addcmul(wide, half, half),
    "bilinear": lambda wide, half: F.bilinear(wide, half, torch.empty(5, 4, 4, device="meta")),
    "cross": lambda wide, half: torch.linalg.cross(wide[:3], half[:3], dim=0),
    "dot": lambda wide, half: torch.dot(wide[0], half[0]),
    "grid_sample": lambda wide, half: F.grid_sample(
        half[None, None], wide[None, :, :2, None].expand(-1, -1, -1, 2), align_corners=False
    ),
    "scatter_add": lambda wide, half: wide.scatter_add(
        0, torch.zeros(4, 4, device="meta", dtype=torch.long), half
    ),
    "tensordot": lambda wide, half: torch.tensordot(wide, half, 1),
    "vdot": lambda wide, half: torch.vdot(wide[0], half[0]),
}


@pytest.mark.parametrize("name", MIXED)
def test_autocast_promotes_operators_that_take_a_single_type(name: str) -> None:
    wide = torch.empty(4, 4, device="meta")
    half = wide.half()
    with fused_functions(torch.float16):
        assert MIXED[name](wide, half).dtype == torch.float32


def test_autocast_leaves_products_of_one_type_as_they_are() -> None:
    half = torch.empty(4, 4, device="meta", dtype=torch.float16)
    with fused_functions(torch.float16):
        assert torch.tensordot(half, half, 1).dtype == torch.float16


@pytest.mark.parametrize("device", ["cuda", "meta"])
def test_a_region_without_autocast_keeps_the_types_of_its_inputs(device: str) -> None:
    half = torch.empty(2, 4, device="meta", dtype=torch.float16)
    weight = torch.empty(4, 4, device="meta", requires_grad=True)
    with fused_functions(torch.float16):
        assert torch.is_autocast_enabled(device)
        with torch.autocast(device, enabled=False):
            assert not torch.is_autocast_enabled(device)
            assert F.layer_norm(half, (4,)).dtype == torch.float16
            assert F.linear(half.float(), weight).dtype == torch.float32
        assert F.layer_norm(half, (4,)).dtype == torch.float32
        assert F.linear(half.float(), weight).dtype == torch.float16


def test_a_model_may_switch_autocast_on_for_itself() -> None:
    wide = torch.empty(2, 4, device="meta")
    with fused_functions():
        with torch.autocast("cuda", torch.bfloat16):
            assert torch.get_autocast_dtype("cuda") == torch.bfloat16
            assert F.linear(wide, wide).dtype == torch.bfloat16
        with torch.amp.autocast_mode.autocast("meta"):
            assert F.linear(wide, wide).dtype == torch.float16
        assert F.linear(wide, wide).dtype == torch.float32


def test_autocast_is_restored_afterwards() -> None:
    before = torch.autocast.__init__, torch.is_autocast_enabled, torch.get_autocast_dtype
    with fused_functions(torch.float16):
        pass
    assert (torch.autocast.__init__, torch.is_autocast_enabled, torch.get_autocast_dtype) == before
    assert not torch.is_autocast_enabled("cpu")


def test_the_lists_have_every_operator_that_torch_casts_on_a_gpu() -> None:
    # What takes the widest type of its arguments by itself, and what is called by another that is listed.
    widest = {"addcdiv", "addcmul", "atan2", "cross", "grid_sampler", "index_put"}
    inner = {"nll_loss2d", "cudnn_convolution", "cudnn_convolution_transpose"}
    refused = {"binary_cross_entropy"}
    names = {
        name.removeprefix("aten::").partition(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCUDA")
    }
    public = {name for name in names if not name.startswith("_") or name.startswith("_upsample")}
    assert public - TO_HALF - TO_FLOAT - TO_WIDEST <= widest | inner | refused
    assert len(public) > 80


class Transposed(nn.Module):
    """Products with temporary views of weights, all of different shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(3, 4 + n)) for n in range(100))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([(x[:, : w.shape[1]] @ w.transpose(0, 1)).sum() for w in self.weights])


def test_casts_of_temporary_views_are_not_reused() -> None:
    graph = capture_module(
        Transposed(), torch.zeros(2, 104), workload=Workload("transposed", precision="amp")
    )
    assert graph.forward_activation_bytes > 0  # 0 if a forward pass in evaluation mode fails


class Generated(nn.Module):
    """Products with weights made in the forward pass, all of different shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(104, 104)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        widths = range(4, 104)
        return sum(F.linear(x[:, :n], torch.zeros(3, n, device=x.device, requires_grad=True)) for n in widths)


def test_casts_of_weights_that_are_gone_are_not_reused() -> None:
    workload = Workload("generated", precision="amp")
    first, again = (capture_module(Generated(), torch.zeros(2, 104), workload=workload) for _ in range(2))
    assert first == again
    assert first.forward_activation_bytes > 0
