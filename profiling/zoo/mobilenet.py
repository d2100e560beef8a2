"""MobileNet V2 for CIFAR (Sandler et al. 2018) and MobileNet V3 small (Howard et al. 2019)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from profiling.zoo.entry import ZooEntry
from profiling.zoo.groups import grouped
from profiling.zoo.tasks import CLASSIFY, images


class InvertedBlock(nn.Module):
    """Expand, depthwise 3x3, project; with ReLU, and a 1x1 shortcut if only the width changes."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        planes = expansion * inputs
        self.conv1 = nn.Conv2d(inputs, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, groups=planes, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride == 1 and inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.projected(x)
        return out + self.shortcut(x) if self.stride == 1 else out

    def projected(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        return self.bn3(self.conv3(out))


class MobileNetV2(nn.Module):
    """Stem with stride 1, seven groups of blocks, 1280-wide head."""

    _GROUPS = (
        (1, 16, 1, 1),
        (6, 24, 2, 1),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(32)
        self.blocks = nn.Sequential(*grouped(InvertedBlock, self._GROUPS, 32))
        self.conv2 = nn.Conv2d(320, 1280, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(1280)
        self.fc = nn.Linear(1280, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.bn1(self.conv1(x))))
        x = F.relu(self.bn2(self.conv2(x)))
        return self.fc(F.avg_pool2d(x, 4).flatten(1))


class SqueezeExcite(nn.Module):
    """Channel weights from the pooled input."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = F.relu(self.fc1(F.adaptive_avg_pool2d(x, 1)), inplace=True)
        return F.hardsigmoid(self.fc2(scale)) * x


def _conv_bn(
    inputs: int, outputs: int, kernel: int, stride: int, groups: int, act: nn.Module | None
) -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs, eps=0.001, momentum=0.01),
    ]
    return nn.Sequential(*layers, *([act] if act is not None else []))


def _divisible(value: float) -> int:
    rounded = max(8, int(value + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * value else rounded


class V3Block(nn.Module):
    """Inverted residual with optional squeeze-and-excitation."""

    def __init__(
        self, inputs: int, kernel: int, planes: int, outputs: int, squeeze: bool, hard: bool, stride: int
    ) -> None:
        super().__init__()
        act = nn.Hardswish if hard else nn.ReLU
        layers: list[nn.Module] = []
        if planes != inputs:
            layers.append(_conv_bn(inputs, planes, 1, 1, 1, act(inplace=True)))
        layers.append(_conv_bn(planes, planes, kernel, stride, planes, act(inplace=True)))
        if squeeze:
            layers.append(SqueezeExcite(planes, _divisible(planes / 4)))
        layers.append(_conv_bn(planes, outputs, 1, 1, 1, None))
        self.block = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x) if self.residual else self.block(x)


class MobileNetV3Small(nn.Module):
    """Eleven inverted residuals and a 1024-wide classifier."""

    _BLOCKS = (
        (16, 3, 16, 16, True, False, 2),
        (16, 3, 72, 24, False, False, 2),
        (24, 3, 88, 24, False, False, 1),
        (24, 5, 96, 40, True, True, 2),
        (40, 5, 240, 40, True, True, 1),
        (40, 5, 240, 40, True, True, 1),
        (40, 5, 120, 48, True, True, 1),
        (48, 5, 144, 48, True, True, 1),
        (48, 5, 288, 96, True, True, 2),
        (96, 5, 576, 96, True, True, 1),
        (96, 5, 576, 96, True, True, 1),
    )

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = _conv_bn(3, 16, 3, 2, 1, nn.Hardswish(inplace=True))
        self.blocks = nn.Sequential(*(V3Block(*row) for row in self._BLOCKS))
        self.head = _conv_bn(96, 576, 1, 1, 1, nn.Hardswish(inplace=True))
        self.classifier = nn.Sequential(
            nn.Linear(576, 1024),
            nn.Hardswish(inplace=True),
            nn.Dropout(0.2, inplace=True),
            nn.Linear(1024, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.head(self.blocks(self.stem(x)))
        return self.classifier(F.adaptive_avg_pool2d(x, 1).flatten(1))


ENTRIES = (
    ZooEntry(
        name="mobilenetv2-cifar",
        family="mobilenet",
        model=lambda: MobileNetV2(10),
        batch=images(32, 10),
        phases=CLASSIFY,
        batch_size=128,
        optimizer="momentum",
        parameters=2_296_922,
        source="github.com/kuangliu/pytorch-cifar, MobileNetV2",
        description="MobileNet V2 with stride-1 stem on 32x32 images",
    ),
    ZooEntry(
        name="mobilenetv3small-imagenet",
        family="mobilenet",
        model=lambda: MobileNetV3Small(1000),
        batch=images(224, 1000),
        phases=CLASSIFY,
        batch_size=64,
        optimizer="momentum",
        parameters=2_542_856,
        source="torchvision mobilenet_v3_small: num_params of MobileNet_V3_Small_Weights",
        description="MobileNet V3 small on 224x224 images",
    ),
)
