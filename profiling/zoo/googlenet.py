"""GoogLeNet (Szegedy et al. 2015): the CIFAR variant with batch norms, and torchvision's for ImageNet."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.training import Phase
from profiling.zoo.entry import ZooEntry
from profiling.zoo.tasks import CLASSIFY, images

# Inputs, 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool projection; 0 stands for a pooling layer.
_BLOCKS: tuple[tuple[int, ...], ...] = (
    (192, 64, 96, 128, 16, 32, 32),
    (256, 128, 128, 192, 32, 96, 64),
    (0,),
    (480, 192, 96, 208, 16, 48, 64),
    (512, 160, 112, 224, 24, 64, 64),
    (512, 128, 128, 256, 24, 64, 64),
    (512, 112, 144, 288, 32, 64, 64),
    (528, 256, 160, 320, 32, 128, 128),
    (0,),
    (832, 256, 160, 320, 32, 128, 128),
    (832, 384, 192, 384, 48, 128, 128),
)


class ConvBN(nn.Module):
    """Convolution, batch norm, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, bias: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=bias)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)), inplace=True)


class Inception(nn.Module):
    """Four parallel branches.

    Args:
        widths: a row of `_BLOCKS`.
        deep: two 3x3 convolutions with bias in place of 5x5 (CIFAR variant); otherwise one 3x3, as in torchvision.
    """

    def __init__(self, widths: tuple[int, ...], deep: bool) -> None:
        super().__init__()
        inputs, one_by_one, three_in, three, five_in, five, pool = widths
        self.one = ConvBN(inputs, one_by_one, 1, bias=deep)
        self.three = nn.Sequential(
            ConvBN(inputs, three_in, 1, bias=deep), ConvBN(three_in, three, 3, bias=deep)
        )
        last = [ConvBN(five_in, five, 3, bias=deep)] + ([ConvBN(five, five, 3, bias=True)] if deep else [])
        self.five = nn.Sequential(ConvBN(inputs, five_in, 1, bias=deep), *last)
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), ConvBN(inputs, pool, 1, bias=deep))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.one(x), self.three(x), self.five(x), self.pool(x)), 1)


def _blocks(deep: bool) -> list[nn.Module]:
    return [nn.MaxPool2d(3, 2, 1) if row == (0,) else Inception(row, deep) for row in _BLOCKS]


class SmallGoogLeNet(nn.Module):
    """For 32x32 images, with a single 3x3 convolution as the stem."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = ConvBN(3, 192, 3, bias=True)
        self.blocks = nn.Sequential(*_blocks(deep=True))
        self.fc = nn.Linear(1024, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1).flatten(1))


class Auxiliary(nn.Module):
    """Auxiliary classifier on an intermediate feature map, used in training."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.conv = ConvBN(inputs, 128, 1)
        self.fc1 = nn.Linear(2048, 1024)
        self.fc2 = nn.Linear(1024, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(F.adaptive_avg_pool2d(x, 4)).flatten(1)
        return self.fc2(F.dropout(F.relu(self.fc1(x), inplace=True), 0.7, self.training))


class GoogLeNet(nn.Module):
    """For 224x224 images, with both auxiliary classifiers; returns three score tensors."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            ConvBN(3, 64, 7, 2),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            ConvBN(64, 64, 1),
            ConvBN(64, 192, 3),
            nn.MaxPool2d(3, 2, ceil_mode=True),
        )
        self.blocks = nn.ModuleList(_blocks(deep=False))
        self.aux = nn.ModuleList([Auxiliary(512, classes), Auxiliary(528, classes)])
        self.fc = nn.Linear(1024, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.stem(x)
        inner: list[Tensor] = []
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i in (3, 6):
                inner.append(self.aux[len(inner)](x))
        x = F.dropout(F.adaptive_avg_pool2d(x, 1).flatten(1), 0.2, self.training)
        return self.fc(x), inner[0], inner[1]


def _loss(model: nn.Module, batch: Any, _memo: dict[str, Any]) -> Tensor:
    scores, first, second = model(batch["image"])
    label = batch["label"]
    return F.cross_entropy(scores, label) + 0.3 * (
        F.cross_entropy(first, label) + F.cross_entropy(second, label)
    )


ENTRIES = (
    ZooEntry(
        name="googlenet-cifar",
        family="googlenet",
        model=lambda: SmallGoogLeNet(10),
        batch=images(32, 10),
        phases=CLASSIFY,
        batch_size=128,
        optimizer="momentum",
        parameters=6_166_250,
        source="github.com/kuangliu/pytorch-cifar, GoogLeNet",
        description="GoogLeNet with batch normalisation on 32x32 images",
    ),
    ZooEntry(
        name="googlenet-imagenet",
        family="googlenet",
        model=lambda: GoogLeNet(1000),
        batch=images(224, 1000),
        phases=(Phase(_loss),),
        batch_size=64,
        optimizer="momentum",
        parameters=13_004_888,
        source="torchvision googlenet with aux_logits: 13,004,888 (6,624,904 without)",
        description="GoogLeNet with auxiliary classifiers on 224x224 images",
    ),
)
