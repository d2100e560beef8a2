"""Every NAS-Bench-101 cell with up to five vertices, by its hash.

The networks are in `profiling.zoo.nasbench`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from profiling.collections.entry import Entry, Maker
from profiling.collections.lazy import lazy_weights
from profiling.training import TrainingJob
from profiling.zoo.nasbench import Cell, NasBenchNetwork, cells
from profiling.zoo.tasks import CLASSIFY, images

MAX_VERTICES = 5


def entries() -> Iterator[Entry]:
    for cell in cells(MAX_VERTICES):
        family = f"{cell.vertices} vertices"
        yield Entry(cell.fingerprint(), family, (0,), partial(_makers, cell), precisions=("fp32",))


def _makers(cell: Cell, _size: int) -> Iterator[Maker]:
    with lazy_weights("meta"):
        model = NasBenchNetwork(cell)
    model.train()
    yield partial(_job, model)


def _job(model: NasBenchNetwork, batch_size: int, precision: str) -> TrainingJob:
    with torch.device("meta"):
        batch = images(32, 10)(batch_size, 0)
    return TrainingJob(model, batch, CLASSIFY, batch_size=batch_size, precision=precision)
