"""Rules for the backward pass of an exported module, compared with the recording of a step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.capture import capture_module
from profiling.errors import InputError
from profiling.workload import Workload

ADAM = Workload("module", optimizer="adam")


class Heads(nn.Module):
    """A body with a head, a head that the loss may leave out, and one behind `detach`."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(32, 64)
        self.head = nn.Linear(64, 4)
        self.other = nn.Linear(64, 256)
        self.probe = nn.Linear(64, 8)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        z = self.body(x).relu()
        return {"head": self.head(z), "other": self.other(z), "probe": self.probe(z.detach().flatten(1))}


class Routed(nn.Module):
    """Experts that get tokens in an order of integers, which pass no gradient to the router."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(16, 4)
        self.experts = nn.Parameter(torch.zeros(4, 16, 16))

    def forward(self, x: Tensor) -> Tensor:
        weight, expert = self.router(x).softmax(-1).max(-1)
        return (x[expert.argsort()].view(4, -1, 16) @ self.experts).flatten(0, 1) * weight[:, None]


class Merged(nn.Module):
    """A frozen weight with a merged adapter, and a trained bias that is no factor of the product."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(16, 32)
        self.base.weight.requires_grad_(False)
        self.down = nn.Parameter(torch.zeros(2, 16))
        self.up = nn.Parameter(torch.zeros(32, 2))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.base.weight + self.up @ self.down, self.base.bias)


class Biased(nn.Module):
    """Layers that train nothing but their biases."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name.endswith("bias"))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Spectral(nn.Module):
    """A Fourier layer, which writes the modes it keeps in place."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(16, 16)
        self.modes = nn.Parameter(torch.zeros(16, 16, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.fft(self.lift(x), dim=1)
        kept = torch.zeros_like(spectrum)
        kept[:, :4] = spectrum[:, :4] @ self.modes
        return torch.fft.ifft(kept, dim=1).real


def head(output: Any) -> Tensor:
    return output["head"].mean()


def compared(output: Tensor) -> Tensor:
    """A loss with a product of its own."""
    return (output @ output.T).logsumexp(-1).mean()


@pytest.mark.parametrize(
    ("model", "inputs", "loss"),
    [
        pytest.param(Heads, (8, 32), head, id="a head that the loss does not read"),
        pytest.param(Heads, (8, 32), None, id="all heads"),
        pytest.param(Routed, (8, 16), None, id="integers"),
        pytest.param(Merged, (8, 16), None, id="a computed weight"),
        pytest.param(Biased, (8, 16), None, id="biases only"),
        pytest.param(Biased, (8, 16), compared, id="a loss with a product"),
    ],
)
def test_what_gets_no_gradient_has_no_backward_pass(
    model: type[nn.Module], inputs: tuple[int, ...], loss: Callable[[Any], Tensor] | None
) -> None:
    static, recorded = (
        capture_module(model(), torch.zeros(inputs), loss=loss, workload=ADAM, static=s)
        for s in (True, False)
    )
    for figure in (
        "parameter_count",
        "gradient_bytes",
        "optimizer_state_bytes",
        "optimizer_bytes",
        "forward_flops",
        "backward_flops",
    ):
        assert getattr(static, figure) == getattr(recorded, figure) > 0, figure
    assert static.layers == recorded.layers


def test_a_fourier_transform_has_one_in_the_backward_pass() -> None:
    static, recorded = (capture_module(Spectral(), torch.zeros(2, 8, 16), static=s) for s in (True, False))
    assert static.gradient_bytes == recorded.gradient_bytes == recorded.parameter_bytes
    transforms = [op for op in static.operators if op.name.startswith("fft")]
    assert [op.backward_flops for op in transforms] == [op.forward_flops for op in transforms]
    assert static.backward_flops == pytest.approx(recorded.backward_flops, rel=0.05)


def test_operators_of_the_loss_are_left_out_of_inference() -> None:
    graph = capture_module(Biased(), torch.zeros(8, 16), loss=compared, static=True)
    assert [op.training_only for op in graph.operators] == [False] * 3 + [True] * (len(graph.operators) - 3)
    assert any(op.kind == "matmul" for op in graph.operators[3:])


@pytest.mark.parametrize("optimizer", ["adam", "adagrad"])
def test_an_optimiser_skips_what_has_no_gradient(optimizer: str) -> None:
    workload = Workload("module", optimizer=optimizer)
    graph = capture_module(Heads(), torch.zeros(8, 32), loss=head, workload=workload)
    one_head = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
    alone = capture_module(one_head, torch.zeros(8, 32), workload=workload)
    for figure in ("gradient_bytes", "optimizer_flops", "optimizer_bytes", "optimizer_kernels"):
        assert getattr(graph, figure) == getattr(alone, figure) > 0, figure
    # Adagrad makes the state of all parameters in its constructor.
    held = graph.parameter_bytes if optimizer == "adagrad" else 2 * graph.gradient_bytes
    assert graph.optimizer_state_bytes == held


class Then(nn.Module):
    """A layer and a function of its output."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(16, 16), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda h: torch.tensordot(h, h, dims=([1], [1])),
        lambda h: torch.linalg.multi_dot([h, h.mT, h]),
        lambda h: torch.linalg.matrix_power(h.mT @ h, 4),
    ],
)
def test_products_that_export_keeps_whole_have_their_flops(function: Callable[[Tensor], Tensor]) -> None:
    recorded, static = (capture_module(Then(function), torch.randn(8, 16), static=s) for s in (False, True))
    assert static.forward_flops == recorded.forward_flops > 2 * 8 * 16 * 16


def test_a_transform_of_real_to_real_numbers_has_half_the_flops() -> None:
    graph = capture_module(Then(torch.fft.hfft), torch.randn(8, 16), static=True)
    assert graph.operators[1].forward_flops == 2.5 * 8 * 30 * math.log2(30)


@pytest.mark.filterwarnings("error:.*canonical kind")
def test_a_loss_of_two_outputs_differentiates_both() -> None:
    first, second = Then(torch.relu), Then(torch.tanh)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x: Tensor) -> Tensor:
            return F.mse_loss(self.first(x), self.second(x)) + torch.fft.fftshift(self.first(x)).sum()

    graph = capture_module(Both(), torch.randn(8, 16), static=True)
    layers = [op for op in graph.operators if op.kind == "linear"]
    assert [op.backward_flops / op.forward_flops for op in layers] == [1, 1, 1]
    assert [op.kind for op in graph.operators].count("loss") == 1


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda h: torch.vmap(torch.tanh)(h), "under vmap"),
        (lambda h: h * torch.bincount(torch.zeros(8, dtype=torch.long, device=h.device)).sum(), "bincount"),
    ],
)
def test_what_has_no_sizes_of_its_own_is_refused(function: Callable[[Tensor], Tensor], what: str) -> None:
    with pytest.raises(InputError, match=what):
        capture_module(Then(function), torch.randn(8, 16), static=True)


def test_parameters_that_nothing_reads_are_held() -> None:
    model = Heads()
    model.spare = nn.Linear(64, 1000)
    model.probe.weight, model.probe.bias = model.head.weight, model.head.bias  # tied
    recorded, static = (
        capture_module(model, torch.randn(8, 32), loss=lambda out: out["head"].mean(), static=s)
        for s in (False, True)
    )
    assert static.parameter_count == recorded.parameter_count
    assert static.parameter_bytes == recorded.parameter_bytes
    assert static.gradient_bytes == recorded.gradient_bytes


def test_a_compiled_module_is_captured_as_compiled() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3)).to(memory_format=torch.channels_last)
    model.compile()
    options = capture_module(model, torch.randn(2, 3, 8, 8), static=True).options
    assert (options["compiler"], options["memory_layout"]) == ("compile", "channels-last")


@pytest.mark.parametrize("asked", ["fp32", "fp16"])
def test_a_module_in_half_precision_has_two_bytes_for_each_parameter(asked: str) -> None:
    model, x = nn.Linear(16, 16).half(), torch.randn(8, 16, dtype=torch.float16)
    graph = capture_module(model, x, workload=Workload("half", precision=asked), static=True)
    assert graph.options["precision"] == "fp16"
    assert graph.parameter_bytes == graph.gradient_bytes == graph.total("parameter_bytes")
    assert graph.parameter_bytes == 2 * graph.parameter_count
