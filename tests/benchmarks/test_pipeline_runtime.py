"""Training in two real processes compared with one."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from benchmarks.pipeline_runtime import (
    Training,
    emulate_asynchronous,
    split_model,
    train_asynchronously,
    train_synchronously,
)
from profiling.errors import InputError
from profiling.workload import Workload
from scheduling.pipeline.cluster import PipelineCluster
from scheduling.pipeline.plan import plan

SPEC = "vgg11-cifar:batch_size=8"


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 4))


def zoo_model(spec: str) -> nn.Module:
    from profiling.zoo import build

    torch.manual_seed(0)
    return build(Workload.parse(spec)).model


def largest_difference(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    assert left.keys() == right.keys()
    return max(float((left[name] - right[name]).detach().abs().max()) for name in left)


@pytest.fixture(scope="module")
def zoo_training() -> Training:
    from profiling.capture import graph_for

    split = plan(
        graph_for(Workload.parse(SPEC)),
        PipelineCluster((2,), (12e9,)),
        microbatches=2,
        device="v100",
        depth=2,
    ).split_points
    draw = torch.Generator().manual_seed(1)
    batches = [
        (torch.randn(8, 3, 32, 32, generator=draw), torch.randint(10, (8,), generator=draw)) for _ in range(3)
    ]
    return Training(partial(zoo_model, SPEC), batches, split, learning_rate=0.02, microbatches=2)


def test_synchronous_pipeline_equals_single_process_training(zoo_training: Training) -> None:
    run = train_synchronously(zoo_training)
    model = zoo_training.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=zoo_training.learning_rate)
    losses = []
    for inputs, target in zoo_training.batches:
        optimizer.zero_grad()
        total = 0.0
        for part, labels in zip(inputs.chunk(2), target.chunk(2), strict=True):
            loss = zoo_training.loss(model(part), labels) / 2
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    assert run.losses == pytest.approx(losses, abs=1e-5)
    assert largest_difference(run.weights, dict(model.named_parameters())) <= 1e-5


def test_asynchronous_pipeline_equals_training_with_delayed_weights(zoo_training: Training) -> None:
    run = train_asynchronously(zoo_training)
    expected = emulate_asynchronous(zoo_training)
    assert run.losses == pytest.approx(expected.losses, abs=1e-5)
    assert largest_difference(run.weights, expected.weights) <= 1e-5
    plain = emulate_asynchronous(zoo_training, delays=[0, 0])
    assert plain.losses != pytest.approx(run.losses, abs=1e-3)


def test_emulation_without_delays_equals_plain_sgd() -> None:
    draw = torch.Generator().manual_seed(1)
    batches = [
        (torch.randn(16, 12, generator=draw), torch.randint(4, (16,), generator=draw)) for _ in range(6)
    ]
    training = Training(perceptron, batches, ["2"])
    plain = emulate_asynchronous(training, delays=[0, 0])
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=training.learning_rate)
    for inputs, target in batches:
        optimizer.zero_grad()
        training.loss(model(inputs), target).backward()
        optimizer.step()
    assert largest_difference(plain.weights, dict(model.named_parameters())) <= 1e-6
    late = emulate_asynchronous(training)
    assert late.losses[:2] == pytest.approx([plain.losses[0], late.losses[1]])
    assert late.losses[2:] != pytest.approx(plain.losses[2:], abs=1e-6)


def test_a_missing_split_point_is_named() -> None:
    with pytest.raises(InputError, match="encoder"):
        split_model(perceptron(), torch.zeros(2, 12), ["encoder.3"])
