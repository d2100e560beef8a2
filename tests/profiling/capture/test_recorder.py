"""Which storages are activations while buffers, weights and constants come and go."""

from __future__ import annotations

import pytest
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


class Averaged(nn.Module):
    """Follows a network with a moving average of its weights, one by one or all in one operator."""

    def __init__(self, as_list: bool) -> None:
        super().__init__()
        self.network, self.average = (
            nn.Sequential(*(nn.Linear(64, 64) for _ in range(40))) for _ in range(2)
        )
        self.average.requires_grad_(False)
        self.as_list = as_list

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        means, new = list(self.average.parameters()), list(self.network.parameters())
        with torch.no_grad():
            if self.as_list:
                torch._foreach_lerp_(means, new, 0.01)
            else:
                for mean, weight in zip(means, new, strict=True):
                    mean.lerp_(weight, 0.01)
            target = self.average(x)
        return self.network(x) - target


def test_an_operator_on_lists_costs_as_much_as_on_their_tensors() -> None:
    one_by_one, as_list = (capture_module(Averaged(a), torch.randn(4, 64)) for a in (False, True))
    assert as_list.total("bytes_read") == one_by_one.total("bytes_read")
    assert as_list.total("bytes_written") == one_by_one.total("bytes_written")
    update = next(op for op in as_list.operators if op.kind == "elementwise")
    assert len(one_by_one.operators) - len(as_list.operators) == 79
    assert update.kernel_count == 1 + 2  # a seed, and 80 tensors


@torch.library.custom_op("testing::halve", mutates_args=("x",))
def halve(x: torch.Tensor) -> None:
    x.mul_(0.5)


class Halved(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        with torch.no_grad():
            halve(out)
        return out


def test_an_operator_that_only_changes_its_arguments_is_not_free() -> None:
    with pytest.warns(UserWarning, match=r"testing::halve \(1\)"):
        graph = capture_module(Halved(64, 64), torch.randn(4, 64))
    op = next(op for op in graph.operators if op.kind == "testing::halve")
    assert (op.bytes_read, op.bytes_written) == (4 * 4 * 64, 4 * 4 * 64)
