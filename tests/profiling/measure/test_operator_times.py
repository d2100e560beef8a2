from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from profiling.measure.operator_times import attributed, profile_operators
from profiling.training import Phase, TrainingJob, freeze_prefix


def test_backward_time_belongs_to_the_trained_layer_and_not_to_the_frozen_ones_before_it() -> None:
    """Operators without gradients have the sequence number of the next autograd node."""
    model = nn.Sequential(*(nn.Conv2d(4, 4, 3) for _ in range(3)))
    freeze_prefix(model, 2)
    phase = Phase(lambda module, batch, _memo: module(batch).square().mean())
    job = TrainingJob(model, torch.randn(2, 4, 16, 16), [phase], batch_size=2, optimizer="none")
    rows = profile_operators(job, "cpu", 2)["rows"]
    backward = {r["module"]: r["backward_s"] for r in rows if r["kind"] == "convolution"}
    assert (backward["0"], backward["1"]) == (0.0, 0.0)
    assert backward["2"] > 0


def event(
    name: str, parent: SimpleNamespace | None = None, number: int = -1, start: int = 0
) -> SimpleNamespace:
    return SimpleNamespace(
        name=name,
        cpu_parent=parent,
        sequence_nr=number,
        time_range=SimpleNamespace(start=start),
        self_cpu_time_total=10.0,
        kernels=[SimpleNamespace(name="kernel", duration=3.0), SimpleNamespace(name=name, duration=100.0)],
    )


@pytest.mark.parametrize(("on_device", "each_s"), [(False, 10e-6), (True, 3e-6)])
def test_times_belong_to_forward_operators(on_device: bool, each_s: float) -> None:
    module = event("cotenant-module|fc")
    forward = event("aten::linear", module, 5, 1)
    engine = event("autograd::engine::evaluate_function: AddmmBackward0", None, 5, 2)
    step = event("Optimizer.step#SGD.step", None, -1, 4)
    events = [event("aten::mm", engine, -1, 3), engine, forward, module, event("aten::add_", step, -1, 5)]
    ahead, back, optimizer_s = attributed(events, on_device)
    assert ahead == pytest.approx({("fc", "linear"): each_s})
    assert back == pytest.approx({("fc", "linear"): 2 * each_s})
    assert optimizer_s == pytest.approx(each_s)
