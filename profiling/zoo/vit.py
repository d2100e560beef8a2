"""Vision transformers (Dosovitskiy et al. 2021) fine-tuned on Food-101, with unfused attention."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.zoo.entry import ZooEntry
from profiling.zoo.tasks import CLASSIFY, images


class PatchEmbedding(nn.Module):
    """Images to patch tokens, with a class token and position embeddings."""

    def __init__(self, width: int, patches: int) -> None:
        super().__init__()
        self.projection = nn.Conv2d(3, width, 16, 16)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, patches + 1, width))

    def forward(self, x: Tensor) -> Tensor:
        patches = self.projection(x).flatten(2).transpose(1, 2)
        token = self.class_token.expand(len(x), -1, -1)
        return torch.cat((token, patches), 1) + self.positions


class Block(nn.Module):
    """Pre-norm attention and feed-forward network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, eps=1e-12)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-12)
        self.inner = nn.Linear(width, 4 * width)
        self.outer = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        y = self.norm1(x)
        query, key, value = (f(y).view(shape).transpose(1, 2) for f in (self.query, self.key, self.value))
        weights = (query @ key.transpose(-1, -2) / math.sqrt(width // self.heads)).softmax(-1)
        x = x + self.out((weights @ value).transpose(1, 2).reshape(batch, length, width))
        return x + self.outer(F.gelu(self.inner(self.norm2(x))))


class ViT(nn.Module):
    """16x16 patches, a stack of blocks, and a linear head on the class token."""

    def __init__(self, width: int, depth: int, heads: int, classes: int) -> None:
        super().__init__()
        self.embedding = PatchEmbedding(width, 196)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


ENTRIES = (
    ZooEntry(
        name="vit-base-224",
        family="vit",
        model=lambda: ViT(768, 12, 12, 101),
        batch=images(224, 101),
        phases=CLASSIFY,
        batch_size=32,
        optimizer="adamw",
        parameters=86_567_656 - 1000 * 769 + 101 * 769,
        source="torchvision vit_b_16: 86,567,656 with 1000 classes; here 101",
        description="ViT-B/16 on Food-101",
    ),
    ZooEntry(
        name="vit-large-224",
        family="vit",
        model=lambda: ViT(1024, 24, 16, 101),
        batch=images(224, 101),
        phases=CLASSIFY,
        batch_size=16,
        optimizer="adamw",
        parameters=304_326_632 - 1000 * 1025 + 101 * 1025,
        source="torchvision vit_l_16: 304,326,632 with 1000 classes; here 101",
        description="ViT-L/16 on Food-101",
    ),
)
