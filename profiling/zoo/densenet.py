"""Densely connected networks (Huang et al. 2017) on ImageNet."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.zoo.entry import ZooEntry
from profiling.zoo.tasks import CLASSIFY, images


class DenseLayer(nn.Module):
    """Norm, 1x1, norm and 3x3 convolution over the outputs of all earlier layers."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, maps: list[Tensor]) -> Tensor:
        x = self.conv1(F.relu(self.norm1(torch.cat(maps, 1)), inplace=True))
        return self.conv2(F.relu(self.norm2(x), inplace=True))


class DenseBlock(nn.Module):
    """Layers of which each adds `growth` channels."""

    def __init__(self, inputs: int, depth: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DenseLayer(inputs + i * growth, growth) for i in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        maps = [x]
        for layer in self.layers:
            maps.append(layer(maps))
        return torch.cat(maps, 1)


class Transition(nn.Module):
    """Halves the channels and the spatial size."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, inputs // 2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(self.conv(F.relu(self.norm(x), inplace=True)), 2)


class DenseNet(nn.Module):
    """Stem, four dense blocks with transitions, and a linear head."""

    def __init__(self, depths: tuple[int, ...], growth: int, stem: int, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, stem, 7, 2, 3, bias=False)
        self.norm = nn.BatchNorm2d(stem)
        width = stem
        blocks: list[nn.Module] = []
        for i, depth in enumerate(depths):
            blocks.append(DenseBlock(width, depth, growth))
            width += depth * growth
            if i < len(depths) - 1:
                blocks.append(Transition(width))
                width //= 2
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.BatchNorm2d(width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(x)), inplace=True), 3, 2, 1)
        x = F.relu(self.last(self.blocks(x)), inplace=True)
        return self.classifier(F.adaptive_avg_pool2d(x, 1).flatten(1))


def _entry(name: str, depths: tuple[int, ...], growth: int, stem: int, parameters: int) -> ZooEntry:
    return ZooEntry(
        name=f"{name}-imagenet",
        family="densenet",
        model=lambda: DenseNet(depths, growth, stem, 1000),
        batch=images(224, 1000),
        phases=CLASSIFY,
        batch_size=32,
        optimizer="momentum",
        parameters=parameters,
        source=f"torchvision {name}: num_params of its weights",
        description=f"DenseNet-{name[8:]} on 224x224 images",
    )


ENTRIES = (
    _entry("densenet121", (6, 12, 24, 16), 32, 64, 7_978_856),
    _entry("densenet161", (6, 12, 36, 24), 48, 96, 28_681_000),
    _entry("densenet201", (6, 12, 48, 32), 32, 64, 20_013_928),
)
