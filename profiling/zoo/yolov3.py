"""YOLOv3 (Redmon and Farhadi 2018) at 416x416: with one detection scale on VOC, and the published three on COCO.

The freezing measurements used the one-scale model: 117 atomic layers, 56,399,659 parameters, 27.29 G
multiply-adds per image at 416x416.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.training import Phase
from profiling.zoo.entry import ZooEntry

SIZE, ANCHORS = 416, 3


class ConvBlock(nn.Module):
    """Convolution, batch norm and leaky ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(self.bn(self.conv(x)), 0.1, inplace=True)


class Residual(nn.Module):
    """1x1 convolution to half the channels, and 3x3 convolution back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = ConvBlock(width, width // 2, 1)
        self.conv2 = ConvBlock(width // 2, width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(self.conv1(x))


class Darknet53(nn.Module):
    """Backbone; returns the feature maps at strides 8, 16 and 32."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvBlock(3, 32, 3)
        stages = []
        for stage, depth in enumerate((1, 2, 8, 8, 4)):
            width = 64 << stage
            blocks = [Residual(width) for _ in range(depth)]
            stages.append(nn.Sequential(ConvBlock(width // 2, width, 3, 2), *blocks))
        self.stages = nn.ModuleList(stages)

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.stem(x)
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps[2:]


class Head(nn.Module):
    """Five convolutions, whose output the next scale reads, and two for detection."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.neck = nn.Sequential(
            ConvBlock(inputs, width, 1),
            ConvBlock(width, 2 * width, 3),
            ConvBlock(2 * width, width, 1),
            ConvBlock(width, 2 * width, 3),
            ConvBlock(2 * width, width, 1),
        )
        self.last = ConvBlock(width, 2 * width, 3)
        self.detect = nn.Conv2d(2 * width, outputs, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.neck(x)
        return self.detect(self.last(x)), x


class YOLOv3(nn.Module):
    """Backbone and one or three heads."""

    def __init__(self, classes: int, scales: int) -> None:
        super().__init__()
        self.outputs = ANCHORS * (classes + 5)
        self.backbone = Darknet53()
        self.heads = nn.ModuleList([Head(1024, 512, self.outputs)])
        self.laterals = nn.ModuleList()
        for width in (256, 128)[: scales - 1]:
            self.laterals.append(ConvBlock(2 * width, width, 1))
            self.heads.append(Head(3 * width, width, self.outputs))

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = self.backbone(x)
        boxes, passed = self.heads[0](maps[2])
        results = [boxes]
        for i, lateral in enumerate(self.laterals):
            up = F.interpolate(lateral(passed), scale_factor=2)
            boxes, passed = self.heads[i + 1](torch.cat((up, maps[1 - i]), 1))
            results.append(boxes)
        return results


def _batch(classes: int, scales: int) -> Any:
    def batch(batch_size: int, _: int) -> dict[str, Any]:
        sizes = [SIZE // 32 << scale for scale in range(scales)]
        outputs = ANCHORS * (classes + 5)
        return {
            "image": torch.randn(batch_size, 3, SIZE, SIZE),
            "target": [torch.rand(batch_size, outputs, size, size) for size in sizes],
        }

    return batch


def _loss(model: nn.Module, batch: Any, _memo: dict[str, Any]) -> Tensor:
    losses = []
    for boxes, target in zip(model(batch["image"]), batch["target"], strict=True):
        split = 4 * ANCHORS
        losses.append(F.mse_loss(boxes[:, :split], target[:, :split]))
        losses.append(F.binary_cross_entropy_with_logits(boxes[:, split:], target[:, split:]))
    return torch.stack(losses).sum()


ENTRIES = (
    ZooEntry(
        name="yolov3-voc",
        family="yolov3",
        model=lambda: YOLOv3(20, 1),
        batch=_batch(20, 1),
        phases=(Phase(_loss),),
        batch_size=8,
        optimizer="momentum",
        parameters=56_399_659,
        source="total_params of the freezing measurements (FrozenTraceAnalysis, arch_info)",
        description="YOLOv3 with one detection scale on Pascal VOC at 416x416",
    ),
    ZooEntry(
        name="yolov3-coco",
        family="yolov3",
        model=lambda: YOLOv3(80, 3),
        batch=_batch(80, 3),
        phases=(Phase(_loss),),
        batch_size=8,
        optimizer="momentum",
        parameters=61_949_149,
        source="yolov3.weights has 62,001,757 numbers, 52,608 of them running means and variances",
        description="YOLOv3 with three detection scales on COCO at 416x416",
    ),
)
