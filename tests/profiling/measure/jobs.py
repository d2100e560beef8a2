"""Small training jobs for the tests, each the smallest that shows what it is for."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from profiling.workload import Workload


class Job:
    """A training job as `profiling.training` describes it, over any model and mean-square loss."""

    def __init__(self, model: nn.Module, batch: torch.Tensor) -> None:
        self.model, self.batch, self.samples_per_step = model, batch, len(batch)
        trained = [p for p in model.parameters() if p.requires_grad]
        self.optimizers = [torch.optim.SGD(trained, lr=1e-3)]

    def step(self) -> None:
        self.optimizers[0].zero_grad()
        self.model(self.batch).square().mean().backward()
        self.optimizers[0].step()


def mlp(workload: Workload, device: str) -> Job:
    model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(128, 128), nn.ReLU()))).to(device)
    linears = [m for m in model if isinstance(m, nn.Linear)]
    for layer in linears[: workload.frozen_prefix]:
        layer.requires_grad_(False)
    return Job(model, torch.randn(workload.batch_size or 64, 128, device=device))


class _Failing(Job):
    def __init__(self, after: int, error: BaseException) -> None:
        super().__init__(nn.Linear(8, 8), torch.randn(4, 8))
        self.after, self.error, self.steps = after, error, 0

    def step(self) -> None:
        self.steps += 1
        if self.steps > self.after:
            raise self.error
        time.sleep(0.001)


def out_of_memory(workload: Workload, device: str) -> Job:
    return _Failing(40, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB"))


def broken(workload: Workload, device: str) -> Job:
    raise RuntimeError("no such weights")


def killed(workload: Workload, device: str) -> Any:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)
