"""Which storages are activations while buffers, weights and constants come and go."""

from __future__ import annotations

import torch
from torch import nn

from profiling.capture import capture_module


class Counting(nn.Module):
    """Replaces a buffer in every forward pass, as batch norms of some libraries do to count batches."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.register_buffer("batches", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.batches = self.batches + 1
        return self.linear(x).relu_()


def test_a_replaced_buffer_hides_no_activation() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*(Counting() for _ in range(200)))
    graph = capture_module(model, torch.empty(8, 16))
    kept = [op.saved_activation_bytes for op in graph.operators if op.kind == "activation"]
    assert kept == [8 * 16 * 4] * 200


class Binary(nn.Linear):
    """Replaces the data of its weight in every forward pass, as binarised networks do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.data = self.weight.data.sign()
        return super().forward(x).relu_()


def test_replaced_weights_hide_no_activation() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*(Binary(16, 16) for _ in range(50)))
    graph = capture_module(model, torch.empty(8, 16))
    kept = [op.saved_activation_bytes for op in graph.operators if op.kind == "activation"]
    assert kept == [8 * 16 * 4] * 50
    assert sum(op.parameter_bytes for op in graph.operators) == graph.parameter_bytes


class Momentum(nn.Module):
    """Contrasts an encoder with its moving average, as MoCo does."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.query, self.key = (nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(2))
        self.key.requires_grad_(False)
        self.in_place = in_place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for mean, new in zip(self.key.parameters(), self.query.parameters(), strict=True):
                if self.in_place:
                    mean.mul_(0.99).add_(new, alpha=0.01)
                else:
                    mean.data = mean.data * 0.99 + new.data * 0.01
            key = self.key(x)
        return self.query(x) * key


def test_replaced_weights_are_no_activations() -> None:
    graphs = [capture_module(Momentum(in_place), torch.randn(4, 64)) for in_place in (True, False)]
    saved = [graph.total("saved_activation_bytes") for graph in graphs]
    assert saved[0] == saved[1] < graphs[0].parameter_bytes / 2
    for graph in graphs:
        assert [op.layer_index for op in graph.operators if op.kind == "linear"] == [1, 0]
        assert graph.activation_bytes < 2 * graph.parameter_bytes


class Copied(nn.Module):
    def __init__(self, has_constants: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.has_constants = has_constants

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        for _ in range(20):
            if self.has_constants:
                torch.zeros(8, 16, device=x.device)
            x = (x.t().contiguous().t() * x).tanh()
        return x


def test_constants_that_are_gone_take_no_saved_activation() -> None:
    """The copy may get the address of the constant, which counts for the operator that follows."""
    saved = [
        [op.saved_activation_bytes for op in capture_module(Copied(c), torch.randn(8, 16)).operators]
        for c in (False, True)
    ]
    assert saved[0] == saved[1]
