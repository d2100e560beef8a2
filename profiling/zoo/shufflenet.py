"""ShuffleNet V2 (Ma et al. 2018), width 1.0, on ImageNet."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from profiling.zoo.entry import ZooEntry
from profiling.zoo.tasks import CLASSIFY, images


def _shuffle(x: Tensor) -> Tensor:
    batch, channels, height, width = x.shape
    return (
        x.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(batch, channels, height, width)
    )


def _branch(inputs: int, width: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, width, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False),
        nn.BatchNorm2d(width),
        nn.Conv2d(width, width, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    )


class Unit(nn.Module):
    """Half of the channels bypass the convolutions, or both halves are downsampled."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        width = outputs // 2
        self.stride = stride
        self.left = nn.Sequential()
        if stride > 1:
            self.left = nn.Sequential(
                nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False),
                nn.BatchNorm2d(inputs),
                nn.Conv2d(inputs, width, 1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            )
        self.right = _branch(inputs if stride > 1 else width, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == 1:
            left, right = x.chunk(2, dim=1)
            return _shuffle(torch.cat((left, self.right(right)), 1))
        return _shuffle(torch.cat((self.left(x), self.right(x)), 1))


class ShuffleNetV2(nn.Module):
    """Stem, three stages, 1024-wide head."""

    def __init__(self, widths: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 24, 3, 2, 1, bias=False),
            nn.BatchNorm2d(24),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        units = []
        inputs = 24
        for width, depth in zip(widths, (4, 8, 4), strict=True):
            for i in range(depth):
                units.append(Unit(inputs, width, 2 if i == 0 else 1))
                inputs = width
        self.units = nn.Sequential(*units)
        self.head = nn.Sequential(
            nn.Conv2d(inputs, 1024, 1, bias=False), nn.BatchNorm2d(1024), nn.ReLU(inplace=True)
        )
        self.fc = nn.Linear(1024, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.head(self.units(self.stem(x))).mean((2, 3)))


ENTRIES = (
    ZooEntry(
        name="shufflenetv2-imagenet",
        family="shufflenet",
        model=lambda: ShuffleNetV2((116, 232, 464), 1000),
        batch=images(224, 1000),
        phases=CLASSIFY,
        batch_size=64,
        optimizer="momentum",
        parameters=2_278_604,
        source="torchvision shufflenet_v2_x1_0: num_params of ShuffleNet_V2_X1_0_Weights",
        description="ShuffleNet V2 x1.0 on 224x224 images",
    ),
)
