"""ConvNeXt (Liu et al. 2022) on 224x224 images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from profiling.zoo.entry import ZooEntry
from profiling.zoo.tasks import CLASSIFY, images


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of (batch, channels, height, width)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Block(nn.Module):
    """Depthwise 7x7, norm, two pointwise layers, scale by channel, residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.inner = nn.Linear(width, 4 * width)
        self.outer = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.outer(F.gelu(self.inner(y))) * self.scale
        return x + y.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """Four stages of blocks, with a norm and a strided 2x2 convolution between stages."""

    def __init__(self, widths: tuple[int, ...], depths: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 4, 4), ChannelNorm(widths[0], eps=1e-6))
        stages: list[nn.Module] = []
        for i, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            if i:
                before = widths[i - 1]
                stages.append(nn.Sequential(ChannelNorm(before, eps=1e-6), nn.Conv2d(before, width, 2, 2)))
            stages.append(nn.Sequential(*(Block(width) for _ in range(depth))))
        self.stages = nn.Sequential(*stages)
        self.norm = nn.LayerNorm(widths[-1], eps=1e-6)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.stages(self.stem(x)).mean((2, 3))))


def _entry(size: str, widths: tuple[int, ...], depths: tuple[int, ...], parameters: int) -> ZooEntry:
    return ZooEntry(
        name=f"convnext-{size}-224",
        family="convnext",
        model=lambda: ConvNeXt(widths, depths, 1000),
        batch=images(224, 1000),
        phases=CLASSIFY,
        batch_size=32,
        optimizer="adamw",
        parameters=parameters,
        source=f"weights of convnext_{size} in torchvision",
        description=f"ConvNeXt {size} on 224x224 images",
    )


ENTRIES = (
    _entry("tiny", (96, 192, 384, 768), (3, 3, 9, 3), 28_589_128),
    _entry("base", (128, 256, 512, 1024), (3, 3, 27, 3), 88_591_464),
)
