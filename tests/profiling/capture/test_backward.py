"""Which operator the backward work of a step belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from profiling.capture import capture_module, capture_zoo, step
from profiling.capture.recorder import Recorder
from profiling.workload import Workload

# With views in between, in-place operators on views (cyclegan), in-place activations that copy their input (MobileNetV3),
# and parameters that are only expanded (ViT).
SPECS = (
    "bert-base-squad:batch_size=1,sequence_length=32",
    "cyclegan-256",
    "densenet121-imagenet:batch_size=2",
    "gpt-125m:batch_size=1,sequence_length=32",
    "lstm-wikitext2",
    "mobilenetv3small-imagenet:batch_size=2",
    "shufflenetv2-imagenet:batch_size=2",
    "swin-tiny-224:batch_size=1",
    "t5-small:batch_size=1,sequence_length=32",
    "vit-base-224:batch_size=1",
    "resnet18-cifar:batch_size=2,precision=amp",
    "gpt-125m:batch_size=1,sequence_length=32,activation_checkpointing=true",
)


class Watched(Recorder):
    """Keeps the last recorder, and sums what it recorded backward."""

    last: Watched

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.backward_bytes = self.backward_flops = 0.0
        Watched.last = self

    def _backward(self, cost: Any, autograd_node: Any, again: bool) -> int:
        self.backward_bytes += cost.read + cost.written
        self.backward_flops += cost.flops
        return super()._backward(cost, autograd_node, again)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Watched]:
    monkeypatch.setattr(step, "Recorder", Watched)
    return lambda: Watched.last


@pytest.mark.parametrize("spec", SPECS)
def test_all_backward_work_has_an_operator(spec: str, watched: Callable[[], Watched]) -> None:
    graph = capture_zoo(Workload.parse(spec))
    recorder = watched()
    assert recorder.stray == 0
    assert graph.total("backward_bytes") == recorder.backward_bytes > 0
    assert graph.backward_flops == recorder.backward_flops > 0


class Block(nn.Module):
    """A body between two layers, so that its work is neither the first nor the last."""

    def __init__(self, body: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.body = body
        self.last = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(self.first(x)))


SIZE = 8 * 16 * 4.0
"""Bytes of a tensor between the layers."""


def backward_of(body: Callable[[Tensor], Tensor]) -> dict[str, float]:
    """Backward bytes by module, or by kind of the operators outside the two layers."""
    sums: dict[str, float] = {}
    for op in capture_module(Block(body), torch.randn(8, 16)).operators:
        name = op.module_path or op.kind
        sums[name] = sums.get(name, 0.0) + op.backward_bytes
    return sums


def same(x: Tensor) -> Tensor:
    return x


@pytest.mark.parametrize(
    "body",
    [
        lambda x: x.view(4, 2, 16).transpose(0, 1).reshape(8, 16),
        lambda x: torch.stack(x.unbind(0)),
        lambda x: torch.cat([part * 2 for part in x.chunk(2, 1)], 1),
        lambda x: x.view(8, 4, 4).relu_().view(8, 16),
        lambda x: F.hardswish(x, inplace=True),
        lambda x: x + x.view(16, 8).t().reshape(8, 16),
    ],
    ids=["layout", "stack", "cat", "in place on a view", "in place", "add"],
)
def test_the_layer_behind_has_its_own_backward_work_only(body: Callable[[Tensor], Tensor]) -> None:
    plain, changed = backward_of(same), backward_of(body)
    assert changed["last"] == plain["last"]
    assert changed["reduction"] == plain["reduction"]
    assert sum(changed.values()) > sum(plain.values())


def test_gradients_of_views_belong_to_the_producer() -> None:
    plain = backward_of(same)
    # The backward pass of each slice fills a tensor of zeros and copies into it; the two are then added.
    halves = backward_of(lambda x: x[:, :8].repeat(1, 2) + x[:, 8:].repeat(1, 2))
    assert halves["first"] > plain["first"] + 4 * SIZE
    assert halves["elementwise"] == 0


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("function", [F.hardswish, F.hardtanh, F.leaky_relu, F.relu])
def test_an_operator_in_place_has_its_own_gradient(function: Any, view: bool) -> None:
    def in_place(x: Tensor) -> Tensor:
        return function(x.view(8, 4, 4), inplace=True).view(8, 16) if view else function(x, inplace=True)

    work = backward_of(in_place)
    assert work["activation"] >= 2 * SIZE
    assert work["first"] == backward_of(same)["first"]


class Expanded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.last = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1))


def test_the_gradient_of_an_expanded_parameter_belongs_to_its_consumer() -> None:
    graph = capture_module(Expanded(), torch.randn(8, 3, 16))
    cat = next(op for op in graph.operators if op.kind == "concat")
    assert cat.backward_bytes >= SIZE
    (last,) = [op for op in graph.operators if op.module_path == "last"]
    plain = capture_module(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4)), torch.randn(8, 4, 16))
    assert last.backward_bytes == plain.operators[1].backward_bytes


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x * 2).relu()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * 2


def recomputed(reentrant: bool) -> Callable[[Tensor], Tensor]:
    return lambda x: checkpoint(lambda y: (y.sin() * y).view(8, 16).exp(), x, use_reentrant=reentrant)


def penalised(x: Tensor) -> Tensor:
    (slope,) = torch.autograd.grad(x.exp().sum(), x, create_graph=True)
    return x * slope.norm()


@pytest.mark.parametrize(
    "body",
    [Doubled.apply, recomputed(False), recomputed(True), penalised],
    ids=["function in Python", "checkpoint", "reentrant checkpoint", "gradient of a gradient"],
)
def test_work_of_nodes_made_in_other_ways(body: Any, watched: Callable[[], Watched]) -> None:
    work = backward_of(body)
    assert watched().stray == 0
    assert work["last"] == backward_of(same)["last"]
    assert work["first"] == backward_of(same)["first"]
