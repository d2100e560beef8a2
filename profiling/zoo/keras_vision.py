"""Keras Applications without top layers on CIFAR-10: ResNet50 (He et al. 2016) and MobileNetV2 (Sandler et al. 2018)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from profiling.zoo.entry import ZooEntry
from profiling.zoo.groups import grouped
from profiling.zoo.tasks import CLASSIFY, images


def _conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Convolution with a bias and batch norm, as in Keras' ResNet."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2), nn.BatchNorm2d(outputs, 1.001e-5)
    )


class Block(nn.Module):
    """Bottleneck with the stride in its first convolution."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = _conv_bn(inputs, width, 1, stride)
        self.second = _conv_bn(width, width, 3)
        self.third = _conv_bn(width, 4 * width, 1)
        self.shortcut = nn.Identity() if inputs == 4 * width else _conv_bn(inputs, 4 * width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.second(F.relu(self.first(x))))
        return F.relu(self.third(out) + self.shortcut(x))


class ResNet50(nn.Module):
    """(batch, 3, 32, 32) to (batch, classes); the last feature map, 1 x 1 x 2048, is flattened."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = _conv_bn(3, 64, 7, 2)
        inputs, blocks = 64, []
        for stage, depth in enumerate((3, 4, 6, 3)):
            for i in range(depth):
                blocks.append(Block(inputs, 64 << stage, 2 if stage and not i else 1))
                inputs = 256 << stage
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1)
        return self.fc(self.blocks(x).flatten(1))


class InvertedBlock(nn.Module):
    """Expand, depthwise 3x3, project."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        width = inputs * expansion
        layers: list[nn.Module] = []
        if expansion > 1:
            layers += [nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width, 1e-3), nn.ReLU6()]
        layers += [
            nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False),
            nn.BatchNorm2d(width, 1e-3),
            nn.ReLU6(),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs, 1e-3),
        ]
        self.block = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x) if self.residual else self.block(x)


class MobileNetV2(nn.Module):
    """(batch, 3, 32, 32) to (batch, classes); the last feature map, 1 x 1 x 1280, is flattened."""

    _STAGES = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, 32, 3, 2, 1, bias=False),
            nn.BatchNorm2d(32, 1e-3),
            nn.ReLU6(),
        ]
        layers += grouped(InvertedBlock, self._STAGES, 32)
        layers += [nn.Conv2d(320, 1280, 1, bias=False), nn.BatchNorm2d(1280, 1e-3), nn.ReLU6()]
        self.features = nn.Sequential(*layers)
        self.fc = nn.Linear(1280, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x).flatten(1))


ENTRIES = (
    ZooEntry(
        name="keras-resnet50-cifar",
        family="keras_vision",
        model=lambda: ResNet50(10),
        batch=images(32, 10),
        phases=CLASSIFY,
        batch_size=64,
        optimizer="adam",
        parameters=23_555_082,
        source="keras.applications ResNet50 without top, 23,534,592 trainable, and a dense layer of 20,490",
        description="Keras' ResNet50 on 32x32 images",
    ),
    ZooEntry(
        name="keras-mobilenetv2-cifar",
        family="keras_vision",
        model=lambda: MobileNetV2(10),
        batch=images(32, 10),
        phases=CLASSIFY,
        batch_size=64,
        optimizer="adam",
        parameters=2_236_682,
        source="keras.applications MobileNetV2 without top, 2,223,872 trainable, and a dense layer of 12,810",
        description="Keras' MobileNetV2 on 32x32 images",
    ),
)
