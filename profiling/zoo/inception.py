"""Inception V3 (Szegedy et al. 2016) at 299x299 with its auxiliary classifier."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.training import Phase
from profiling.zoo.entry import ZooEntry
from profiling.zoo.tasks import images

Size = int | tuple[int, int]


class ConvBN(nn.Module):
    """Convolution, batch norm, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: Size, stride: int = 1, padding: Size = 0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)), inplace=True)


class Branches(nn.Module):
    """Parallel branches; one that ends in a list forks into its members."""

    def __init__(self, *branches: list[Any]) -> None:
        super().__init__()
        self.trunks = nn.ModuleList()
        self.splits = nn.ModuleList()
        for branch in branches:
            ends = branch[-1] if isinstance(branch[-1], list) else []
            self.trunks.append(nn.Sequential(*(branch[:-1] if ends else branch)))
            self.splits.append(nn.ModuleList(ends))

    def forward(self, x: Tensor) -> Tensor:
        branches = []
        for trunk, split in zip(self.trunks, self.splits, strict=True):
            y = trunk(x)
            branches += [end(y) for end in split.children()] or [y]
        return torch.cat(branches, 1)


def _pool() -> nn.Module:
    return nn.AvgPool2d(3, 1, 1)


def _a(inputs: int, pool: int) -> Branches:
    return Branches(
        [ConvBN(inputs, 64, 1)],
        [ConvBN(inputs, 48, 1), ConvBN(48, 64, 5, padding=2)],
        [ConvBN(inputs, 64, 1), ConvBN(64, 96, 3, padding=1), ConvBN(96, 96, 3, padding=1)],
        [_pool(), ConvBN(inputs, pool, 1)],
    )


def _b(inputs: int) -> Branches:
    return Branches(
        [ConvBN(inputs, 384, 3, 2)],
        [ConvBN(inputs, 64, 1), ConvBN(64, 96, 3, padding=1), ConvBN(96, 96, 3, 2)],
        [nn.MaxPool2d(3, 2)],
    )


def _c(inputs: int, width: int) -> Branches:
    wide: dict[str, Any] = {"kernel": (1, 7), "padding": (0, 3)}
    tall: dict[str, Any] = {"kernel": (7, 1), "padding": (3, 0)}
    return Branches(
        [ConvBN(inputs, 192, 1)],
        [ConvBN(inputs, width, 1), ConvBN(width, width, **wide), ConvBN(width, 192, **tall)],
        [
            ConvBN(inputs, width, 1),
            ConvBN(width, width, **tall),
            ConvBN(width, width, **wide),
            ConvBN(width, width, **tall),
            ConvBN(width, 192, **wide),
        ],
        [_pool(), ConvBN(inputs, 192, 1)],
    )


def _d(inputs: int) -> Branches:
    return Branches(
        [ConvBN(inputs, 192, 1), ConvBN(192, 320, 3, 2)],
        [
            ConvBN(inputs, 192, 1),
            ConvBN(192, 192, (1, 7), padding=(0, 3)),
            ConvBN(192, 192, (7, 1), padding=(3, 0)),
            ConvBN(192, 192, 3, 2),
        ],
        [nn.MaxPool2d(3, 2)],
    )


def _e(inputs: int) -> Branches:
    def ends() -> list[nn.Module]:
        return [ConvBN(384, 384, (1, 3), padding=(0, 1)), ConvBN(384, 384, (3, 1), padding=(1, 0))]

    return Branches(
        [ConvBN(inputs, 320, 1)],
        [ConvBN(inputs, 384, 1), ends()],
        [ConvBN(inputs, 448, 1), ConvBN(448, 384, 3, padding=1), ends()],
        [_pool(), ConvBN(inputs, 192, 1)],
    )


class InceptionV3(nn.Module):
    """Stem, eleven inception blocks, and an auxiliary classifier on the 17x17 map."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            ConvBN(3, 32, 3, 2),
            ConvBN(32, 32, 3),
            ConvBN(32, 64, 3, padding=1),
            nn.MaxPool2d(3, 2),
            ConvBN(64, 80, 1),
            ConvBN(80, 192, 3),
            nn.MaxPool2d(3, 2),
        )
        self.first = nn.Sequential(
            _a(192, 32),
            _a(256, 64),
            _a(288, 64),
            _b(288),
            _c(768, 128),
            _c(768, 160),
            _c(768, 160),
            _c(768, 192),
        )
        self.aux = nn.Sequential(
            nn.AvgPool2d(5, 3), ConvBN(768, 128, 1), ConvBN(128, 768, 5), nn.AdaptiveAvgPool2d(1)
        )
        self.aux_fc = nn.Linear(768, classes)
        self.last = nn.Sequential(_d(768), _e(1280), _e(2048))
        self.fc = nn.Linear(2048, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(self.stem(x))
        inner = self.aux_fc(self.aux(x).flatten(1))
        x = F.adaptive_avg_pool2d(self.last(x), 1).flatten(1)
        return self.fc(F.dropout(x, 0.5, self.training)), inner


def _loss(model: nn.Module, batch: Any, _memo: dict[str, Any]) -> Tensor:
    scores, inner = model(batch["image"])
    return F.cross_entropy(scores, batch["label"]) + 0.4 * F.cross_entropy(inner, batch["label"])


ENTRIES = (
    ZooEntry(
        name="inceptionv3-imagenet",
        family="inception",
        model=lambda: InceptionV3(1000),
        batch=images(299, 1000),
        phases=(Phase(_loss),),
        batch_size=32,
        optimizer="momentum",
        parameters=27_161_264,
        source="torchvision inception_v3: num_params of Inception_V3_Weights",
        description="Inception V3 with auxiliary classifier on 299x299 images",
    ),
)
