"""Swin transformers (Liu et al. 2021) on 224x224 images, with attention in shifted windows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.zoo.entry import ZooEntry
from profiling.zoo.tasks import CLASSIFY, images

WINDOW = 7


def windows(x: Tensor) -> Tensor:
    """(batch, height, width, channels) → (batch x windows, 49, channels)."""
    batch, height, width, channels = x.shape
    x = x.view(batch, height // WINDOW, WINDOW, width // WINDOW, WINDOW, channels)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, WINDOW * WINDOW, channels)


def unwindow(x: Tensor, batch: int, side: int) -> Tensor:
    """The inverse of `windows` for square maps."""
    count = side // WINDOW
    x = x.view(batch, count, count, WINDOW, WINDOW, -1)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(batch, side, side, -1)


def shift_mask(side: int, shift: int, device: torch.device) -> Tensor:
    """(windows, 49, 49) mask, True if two positions of a shifted window are not adjacent in the image."""
    edge = torch.arange(side, device=device)
    region = (edge >= side - WINDOW).long() + (edge >= side - shift).long()
    label = windows((region[:, None] * 3 + region[None, :])[None, :, :, None])[..., 0]
    return label[:, :, None] != label[:, None, :]


class WindowAttention(nn.Module):
    """Attention within windows, with a learned bias per relative position."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.relative = nn.Parameter(torch.zeros((2 * WINDOW - 1) ** 2, heads))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        count, area, width = x.shape
        query, key, value = (
            self.qkv(x).view(count, area, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        )
        place = torch.arange(area, device=x.device)
        offset = torch.stack((place // WINDOW, place % WINDOW))
        offset = offset[:, :, None] - offset[:, None, :] + WINDOW - 1
        bias = self.relative[offset[0] * (2 * WINDOW - 1) + offset[1]].permute(2, 0, 1)
        scores = query * (width // self.heads) ** -0.5 @ key.transpose(-1, -2) + bias
        if mask is not None:
            shape = (count // len(mask), len(mask), self.heads, area, area)
            scores = scores.view(shape).masked_fill(mask[None, :, None], -100.0).view_as(scores)
        mixed = scores.softmax(-1) @ value
        return self.out(mixed.transpose(1, 2).reshape(count, area, width))


class Block(nn.Module):
    """Pre-norm window attention, shifted or not, and a feed-forward network."""

    def __init__(self, width: int, heads: int, shifted: bool) -> None:
        super().__init__()
        self.shifted = shifted
        self.norm1 = nn.LayerNorm(width)
        self.attention = WindowAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 4 * width)
        self.outer = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, side, _, _ = x.shape
        # A map with a single window cannot shift.
        shift = WINDOW // 2 if self.shifted and side > WINDOW else 0
        y = self.norm1(x)
        if shift:
            y = torch.roll(y, (-shift, -shift), (1, 2))
        y = self.attention(windows(y), shift_mask(side, shift, x.device) if shift else None)
        y = unwindow(y, batch, side)
        if shift:
            y = torch.roll(y, (shift, shift), (1, 2))
        x = x + y
        return x + self.outer(F.gelu(self.inner(self.norm2(x))))


class PatchMerging(nn.Module):
    """Merges 2x2 patches into one with twice the channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = [x[:, i::2, j::2] for j in range(2) for i in range(2)]
        return self.reduction(self.norm(torch.cat(parts, -1)))


class Swin(nn.Module):
    """4x4 patches and four stages; each halves the spatial size and doubles the channels."""

    def __init__(self, width: int, depths: tuple[int, ...], heads: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.norm = nn.LayerNorm(width)
        stages: list[nn.Module] = []
        for i, (depth, count) in enumerate(zip(depths, heads, strict=True)):
            if i:
                stages.append(PatchMerging(width * 2 ** (i - 1)))
            stages.append(nn.Sequential(*(Block(width * 2**i, count, j % 2 == 1) for j in range(depth))))
        self.stages = nn.Sequential(*stages)
        last = width * 2 ** (len(depths) - 1)
        self.last_norm = nn.LayerNorm(last)
        self.head = nn.Linear(last, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.patches(x).permute(0, 2, 3, 1))
        return self.head(self.last_norm(self.stages(x)).mean((1, 2)))


ENTRIES = (
    ZooEntry(
        name="swin-tiny-224",
        family="swin",
        model=lambda: Swin(96, (2, 2, 6, 2), (3, 6, 12, 24), 1000),
        batch=images(224, 1000),
        phases=CLASSIFY,
        batch_size=32,
        optimizer="adamw",
        parameters=28_288_354,
        source="weights of swin_t in torchvision",
        description="Swin tiny on 224x224 images, windows of 7x7",
    ),
)
