"""Minimal training jobs for the tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from profiling.training import Phase, TrainingJob, freeze_prefix
from profiling.workload import Workload


def _square(model: nn.Module, batch: Any, _memo: dict[str, Any]) -> torch.Tensor:
    return model(batch).square().mean()


def mlp(workload: Workload, device: str, optimizer: str = "sgd") -> TrainingJob:
    """Four linear layers of 128."""
    model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(128, 128), nn.ReLU()))).to(device)
    freeze_prefix(model, workload.frozen_prefix)
    size = workload.batch_size or 64
    batch = torch.randn(size, 128, device=device)
    return TrainingJob(model, batch, [Phase(_square)], batch_size=size, optimizer=optimizer)


def plain(workload: Workload, device: str) -> TrainingJob:
    """The same without an optimiser, which would import torch._dynamo (longer than a test takes)."""
    return mlp(workload, device, "none")


def captured(batch_size: int = 16) -> tuple[nn.Module, torch.Tensor]:
    """One linear layer, as a factory for `cotenant capture`."""
    return nn.Linear(8, 4), torch.randn(batch_size, 8)


def fails(batch_size: int = 16) -> tuple[nn.Module, torch.Tensor]:
    raise KeyError("no such setting")


def nan(batch_size: int = 16) -> tuple[nn.Module, torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
    return *captured(batch_size), lambda output: output.sum() * float("nan")


def detached(
    batch_size: int = 16,
) -> tuple[nn.Module, torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
    return *captured(batch_size), lambda output: output.sum().detach()


def forward_only(workload: Workload, device: str) -> TrainingJob:
    """A step without gradients, as of inference."""

    def loss(model: nn.Module, batch: Any, _memo: dict[str, Any]) -> torch.Tensor:
        with torch.no_grad():
            return _square(model, batch, _memo)

    return TrainingJob(nn.Linear(8, 8), torch.randn(4, 8), [Phase(loss)], batch_size=4, optimizer="none")


class _Failing(TrainingJob):
    def __init__(self, after: int, error: BaseException) -> None:
        phases = [Phase(_square)]
        super().__init__(nn.Linear(8, 8), torch.randn(4, 8), phases, batch_size=4, optimizer="none")
        self.after, self.error, self.steps = after, error, 0

    def step(self, mark: Callable[[str], None] = lambda _: None) -> torch.Tensor:
        self.steps += 1
        if self.steps > self.after:
            raise self.error
        time.sleep(0.001)
        return torch.empty(0)


def out_of_memory(workload: Workload, device: str) -> TrainingJob:
    return _Failing(40, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB"))


def broken(workload: Workload, device: str) -> TrainingJob:
    raise RuntimeError("no such weights")


def killed(workload: Workload, device: str) -> Any:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)


class _Hanging(_Failing):
    def step(self, mark: Callable[[str], None] = lambda _: None) -> torch.Tensor:
        if self.steps == self.after:
            time.sleep(600)
        return super().step(mark)


def hanging(workload: Workload, device: str) -> TrainingJob:
    return _Hanging(200, RuntimeError())


class _SlowStart(TrainingJob):
    steps = 0

    def step(self, mark: Callable[[str], None] = lambda _: None) -> torch.Tensor:
        # Each rank of a real job connects to the others at its first steps.
        self.steps += 1
        time.sleep(0.01 if self.steps > 2 else 1.0)
        return super().step(mark)


def slow_start(workload: Workload, device: str) -> TrainingJob:
    model = nn.Linear(8, 8).to(device)
    return _SlowStart(model, torch.randn(4, 8), [Phase(_square)], batch_size=4, optimizer="none")
