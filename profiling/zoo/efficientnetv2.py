"""EfficientNetV2 (Tan and Le 2021): fused blocks early, squeeze-and-excitation late."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from profiling.zoo.entry import ZooEntry
from profiling.zoo.tasks import CLASSIFY, images

# Fused, expansion, kernel, stride, inputs, outputs, blocks: table 4 of the paper.
SMALL = (
    (True, 1, 3, 1, 24, 24, 2),
    (True, 4, 3, 2, 24, 48, 4),
    (True, 4, 3, 2, 48, 64, 4),
    (False, 4, 3, 2, 64, 128, 6),
    (False, 6, 3, 1, 128, 160, 9),
    (False, 6, 3, 2, 160, 256, 15),
)


def _conv(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, act: bool = True
) -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs, eps=1e-3),
    ]
    return nn.Sequential(*layers, nn.SiLU(inplace=True)) if act else nn.Sequential(*layers)


class SqueezeExcitation(nn.Module):
    """Channel weights from the channel means."""

    def __init__(self, width: int, squeezed: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(width, squeezed, 1)
        self.expand = nn.Conv2d(squeezed, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.expand(F.silu(self.reduce(F.adaptive_avg_pool2d(x, 1)))).sigmoid()


class Block(nn.Module):
    """MBConv, or fused MBConv, with a 3x3 convolution in place of the pointwise and depthwise ones."""

    def __init__(
        self, fused: bool, expansion: int, kernel: int, stride: int, inputs: int, outputs: int
    ) -> None:
        super().__init__()
        self.residual = stride == 1 and inputs == outputs
        inner = inputs * expansion
        if fused and expansion == 1:
            self.layers = nn.Sequential(_conv(inputs, outputs, kernel, stride))
        elif fused:
            self.layers = nn.Sequential(
                _conv(inputs, inner, kernel, stride), _conv(inner, outputs, 1, act=False)
            )
        else:
            self.layers = nn.Sequential(
                _conv(inputs, inner, 1),
                _conv(inner, inner, kernel, stride, groups=inner),
                SqueezeExcitation(inner, inputs // 4),
                _conv(inner, outputs, 1, act=False),
            )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.residual else self.layers(x)


class EfficientNetV2(nn.Module):
    """Stem, blocks, head of width 1,280."""

    def __init__(self, stages: tuple[tuple[bool, int, int, int, int, int, int], ...], classes: int) -> None:
        super().__init__()
        self.stem = _conv(3, stages[0][4], 3, 2)
        blocks = []
        for fused, expansion, kernel, stride, inputs, outputs, count in stages:
            for i in range(count):
                blocks.append(
                    Block(fused, expansion, kernel, 1 if i else stride, outputs if i else inputs, outputs)
                )
        self.blocks = nn.Sequential(*blocks)
        self.head = _conv(stages[-1][5], 1280, 1)
        self.dropout = nn.Dropout(0.2)
        self.classifier = nn.Linear(1280, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.dropout(self.head(self.blocks(self.stem(x))).mean((2, 3))))


ENTRIES = (
    ZooEntry(
        name="efficientnetv2-small-384",
        family="efficientnetv2",
        model=lambda: EfficientNetV2(SMALL, 1000),
        batch=images(384, 1000),
        phases=CLASSIFY,
        batch_size=16,
        optimizer="momentum",
        parameters=21_458_488,
        source="weights of efficientnet_v2_s in torchvision",
        description="EfficientNetV2-S on 384x384 images",
    ),
)
