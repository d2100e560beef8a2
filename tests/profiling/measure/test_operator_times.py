from __future__ import annotations

import torch
from torch import nn

from profiling.measure.operator_times import profile_operators
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
