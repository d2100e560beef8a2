from __future__ import annotations

import torch

from profiling.measure.cached_prefix import cache_prefix
from profiling.training import atomic_layers
from profiling.workload import Workload
from tests.profiling.measure.jobs import mlp


def test_cached_frozen_layers_do_not_compute_and_the_rest_still_trains() -> None:
    torch.manual_seed(0)
    job = mlp(Workload("mlp", frozen_prefix=2), "cpu")
    before = job.model(job.batch).detach().clone()
    layers = [module for _, module in atomic_layers(job.model)]
    cache_prefix(job, layers[:2])
    weight = layers[3].weight.detach().clone()
    # whatever comes in, the prefix answers what it recorded
    torch.testing.assert_close(job.model(torch.zeros_like(job.batch)), job.model(job.batch))
    job.step()
    assert not torch.equal(layers[3].weight, weight)
    assert before.shape == job.model(job.batch).shape


def test_layer_around_trained_layers_still_runs() -> None:
    class Root(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = torch.nn.Parameter(torch.zeros(8), requires_grad=False)
            self.head = torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x + self.token)

    class Job:
        model = Root()

        def step(self) -> None:
            self.model(torch.ones(2, 8))

    job = Job()
    cache_prefix(job, [job.model])
    assert not torch.equal(job.model(torch.ones(2, 8)), job.model(torch.zeros(2, 8)))
