"""EfficientNet-B0 for CIFAR (Tan and Le 2019), as simplified in an early public implementation."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from profiling.zoo.entry import ZooEntry
from profiling.zoo.groups import grouped
from profiling.zoo.mobilenet import InvertedBlock
from profiling.zoo.tasks import CLASSIFY, images


class Block(InvertedBlock):
    """Squeeze-and-excitation on the projected channels."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__(inputs, outputs, expansion, stride)
        self.fc1 = nn.Conv2d(outputs, outputs // 16, 1)
        self.fc2 = nn.Conv2d(outputs // 16, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        out = self.projected(x)
        gate = F.relu(self.fc1(F.adaptive_avg_pool2d(out, 1)))
        out = out * self.fc2(gate).sigmoid()
        return out + self.shortcut(x) if self.stride == 1 else out


class EfficientNetB0(nn.Module):
    """Seven groups of blocks with 3x3 depthwise kernels, and no head convolution."""

    _GROUPS = (
        (1, 16, 1, 2),
        (6, 24, 2, 1),
        (6, 40, 2, 2),
        (6, 80, 3, 2),
        (6, 112, 3, 1),
        (6, 192, 4, 2),
        (6, 320, 1, 2),
    )

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(32)
        self.blocks = nn.Sequential(*grouped(Block, self._GROUPS, 32))
        self.fc = nn.Linear(320, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.bn1(self.conv1(x))))
        return self.fc(x.flatten(1))


ENTRIES = (
    ZooEntry(
        name="efficientnetb0-cifar",
        family="efficientnet",
        model=lambda: EfficientNetB0(10),
        batch=images(32, 10),
        phases=CLASSIFY,
        batch_size=128,
        optimizer="momentum",
        parameters=2_912_089,
        source="github.com/kuangliu/pytorch-cifar, EfficientNetB0 before its revision of 2020",
        description="EfficientNet-B0, older CIFAR variant, on 32x32 images",
    ),
)
