"""Activations with a frozen prefix compared with steps recorded with it frozen."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from models.cost.activations import peak_activation_bytes
from profiling.capture import capture_zoo
from profiling.training import tensors_of
from profiling.workload import Workload
from profiling.zoo import build, resolve

RESNET = "resnet18-cifar:batch_size=4"
NETWORKS = [RESNET, "vgg11-cifar:batch_size=4", "gpt-125m:batch_size=1,sequence_length=32"]


@pytest.mark.parametrize("model", [*NETWORKS, f"{RESNET},gradient_accumulation=3"])
def test_peak_equals_that_of_a_recorded_step(model: str) -> None:
    """GPT's head is tied to its embedding: both gradients are alive at once, and neither if frozen."""
    workload = Workload.parse(model)
    graph = capture_zoo(workload)
    layers = len(graph.layers)
    assert peak_activation_bytes(graph, 0) == graph.activation_bytes
    for prefix in (1, layers // 4, layers // 2, layers - 3, layers - 1):
        recorded = capture_zoo(replace(workload, frozen_prefix=prefix)).activation_bytes
        assert peak_activation_bytes(graph, prefix) == pytest.approx(recorded, rel=0.07), prefix


def test_a_frozen_network_still_computes_its_loss() -> None:
    """Logits and their softmax are alive, unlike in inference."""
    workload = Workload.parse(NETWORKS[-1])
    graph = capture_zoo(workload)
    frozen = len(graph.layers)
    recorded = capture_zoo(replace(workload, frozen_prefix=frozen)).activation_bytes
    assert recorded > 1.5 * graph.forward_activation_bytes
    assert peak_activation_bytes(graph, frozen) == pytest.approx(recorded, rel=0.07)


@pytest.mark.parametrize("model", NETWORKS)
def test_peak_never_rises_with_the_prefix(model: str) -> None:
    graph = capture_zoo(Workload.parse(model))
    peaks = [peak_activation_bytes(graph, prefix) for prefix in range(len(graph.layers) + 1)]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[-1] < peaks[0]


@pytest.mark.parametrize("prefix", [0, 10, 30, 40])
def test_a_recorded_step_keeps_what_autograd_saves(prefix: int) -> None:
    """On the CPU, with data: distinct tensors that the backward pass reads, without parameters and input."""
    workload = replace(Workload.parse(RESNET), frozen_prefix=prefix)
    columns = capture_zoo(workload).columns
    job = build(resolve(workload), "cpu")
    resident = {t.untyped_storage().data_ptr() for t in (*job.model.parameters(), *job.model.buffers())}
    saved: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = job.phases[0].loss(job.model, job.batch, {})
    inputs = {t.untyped_storage().data_ptr() for t in tensors_of(job.batch)}
    total = sum(t.untyped_storage().nbytes() for key, t in saved.items() if key not in resident | inputs)
    assert loss.requires_grad
    assert total == pytest.approx((columns["saved_activation_bytes"] * columns["repeat"]).sum(), rel=0.02)
