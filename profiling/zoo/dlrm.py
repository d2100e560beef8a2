"""DLRM (Naumov et al. 2019) with the layer sizes of the Criteo Kaggle configuration."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.training import Phase
from profiling.zoo.entry import ZooEntry

WIDTH = 16
ROWS = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652,
    2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
"""Distinct values of the 26 categorical columns of Criteo Kaggle."""


def _mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i in range(len(widths) - 1):
        layers.append(nn.Linear(widths[i], widths[i + 1]))
        if i < len(widths) - 2 or widths[-1] > 1:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    """Embeddings of 26 categories and an MLP on 13 numbers, their pairwise dot products, and an MLP on top."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = _mlp(13, 512, 256, 64, WIDTH)
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, WIDTH, mode="sum") for rows in ROWS)
        count = len(ROWS) + 1
        self.top = _mlp(WIDTH + count * (count - 1) // 2, 512, 256, 1)

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        x = self.bottom(dense)
        embedded = [table(column[:, None]) for table, column in zip(self.tables, categories, strict=True)]
        stacked = torch.stack((x, *embedded), 1)
        products = stacked @ stacked.transpose(1, 2)
        count = stacked.shape[1]
        rows, columns = torch.tril_indices(count, count, -1, device=dense.device)
        return self.top(torch.cat((x, products[:, rows, columns]), 1)).flatten()


def _batch(batch_size: int, _: int) -> dict[str, Tensor]:
    columns = [torch.randint(rows, (batch_size,)) for rows in ROWS]
    return {
        "dense": torch.rand(batch_size, 13),
        "categories": torch.stack(columns),
        "label": torch.rand(batch_size),
    }


def _loss(model: nn.Module, batch: Any, _memo: dict[str, Any]) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(batch["dense"], batch["categories"]), batch["label"])


def _linear(*widths: int) -> int:
    return sum(a * b + b for a, b in itertools.pairwise(widths))


ENTRIES = (
    ZooEntry(
        name="dlrm-criteo",
        family="dlrm",
        model=DLRM,
        batch=_batch,
        phases=(Phase(_loss),),
        batch_size=2048,
        optimizer="sgd",
        parameters=sum(ROWS) * WIDTH + _linear(13, 512, 256, 64, WIDTH) + _linear(367, 512, 256, 1),
        source="closed form of github.com/facebookresearch/dlrm, Criteo Kaggle: 33,762,577 rows of 16",
        description="DLRM on Criteo Kaggle",
    ),
)
