"""Host input: every step trains on a new batch, collated by a loader process and copied from the host.

Only the member's process imports this module, so torch is imported at the top.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from profiling.training import tensors_of


class LoadedJob:
    """A training job whose resident batch is overwritten by a new one before every step.

    A new batch has the samples of the resident one in another order, collated by a `torch.utils.data.DataLoader`
    process and, on CUDA, in pinned memory. Collating and copying are real work; reading and decoding files are not
    included. The loader starts at the first step, after the member was pinned, so its processes share the member's
    core.
    """

    def __init__(self, job: Any, device: str, processes: int, seed: int) -> None:
        self.wrapped = job
        self.model, self.batch, self.samples_per_step = job.model, job.batch, job.samples_per_step
        self._resident = list(tensors_of(job.batch))
        host = [t.detach().cpu().clone() for t in self._resident]
        cuda = device == "cuda"
        context = ("spawn" if cuda else "fork") if processes else None
        self._loader = DataLoader(
            Shuffled(host, seed),
            batch_size=None,
            num_workers=processes,
            pin_memory=cuda,
            multiprocessing_context=context,
        )
        self._batches: Iterator[Any] | None = None

    def step(self) -> Any:
        if self._batches is None:
            self._batches = iter(self._loader)
        for resident, fresh in zip(self._resident, next(self._batches), strict=True):
            resident.copy_(fresh, non_blocking=True)
        return self.wrapped.step()


class Shuffled(IterableDataset):  # type: ignore[type-arg]
    """Endless batches: the same tensors, permuted along their first (batch) dimension, so shapes do not change.

    Tensors with equally many rows get the same order, as labels must follow their samples.
    """

    def __init__(self, host: list[torch.Tensor], seed: int) -> None:
        self.host, self.seed = host, seed

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            rows = dict.fromkeys(t.shape[0] for t in self.host if t.dim())
            order = {count: torch.randperm(count, generator=generator) for count in rows}
            yield [t[order[t.shape[0]]] if t.dim() else t.clone() for t in self.host]
