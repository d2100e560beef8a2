"""T5 (Raffel et al. 2020): encoder and decoder with RMS norm and relative position biases, and no other biases."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.training import Phase
from profiling.zoo.entry import ZooEntry

VOCABULARY, BUCKETS, FARTHEST = 32_128, 32, 128


def buckets(length: int, both_ways: bool, device: torch.device) -> Tensor:
    """[length, length] bucket of each relative position; half are exact, half logarithmic up to `FARTHEST`."""
    place = torch.arange(length, device=device)
    offset = place[None, :] - place[:, None]
    count = BUCKETS // 2 if both_ways else BUCKETS
    base = (offset > 0).long() * count if both_ways else torch.zeros_like(offset)
    distance = offset.abs() if both_ways else (-offset).clamp(min=0)
    exact = count // 2
    far = (
        exact
        + (
            torch.log(distance.float().clamp(min=1) / exact) / math.log(FARTHEST / exact) * (count - exact)
        ).long()
    )
    return base + torch.where(distance < exact, distance, far.clamp(max=count - 1))


class Attention(nn.Module):
    """Multi-head attention without scaling; `bias` is added to the scores."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.RMSNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, memory: Tensor | None, bias: Tensor | None) -> Tensor:
        batch, length, width = x.shape
        y = self.norm(x)
        other = y if memory is None else memory

        def split(z: Tensor) -> Tensor:
            return z.view(batch, -1, self.heads, width // self.heads).transpose(1, 2)

        scores = split(self.query(y)) @ split(self.key(other)).transpose(2, 3)
        if bias is not None:
            scores = scores + bias
        context = scores.softmax(-1) @ split(self.value(other))
        return x + self.out(context.transpose(1, 2).reshape(batch, length, width))


class FeedForward(nn.Module):
    """Two linear layers with a ReLU between."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.inner = nn.Linear(width, inner, bias=False)
        self.outer = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(F.relu(self.inner(self.norm(x))))


class Block(nn.Module):
    """Self-attention, cross-attention in the decoder, and a feed-forward network."""

    def __init__(self, width: int, inner: int, heads: int, decodes: bool) -> None:
        super().__init__()
        self.own = Attention(width, heads)
        self.cross = Attention(width, heads) if decodes else None
        self.feed = FeedForward(width, inner)

    def forward(self, x: Tensor, memory: Tensor | None, bias: Tensor) -> Tensor:
        x = self.own(x, None, bias)
        if self.cross is not None:
            x = self.cross(x, memory, None)
        return self.feed(x)


class Stack(nn.Module):
    """Encoder or decoder; all blocks share one relative position bias."""

    def __init__(self, width: int, inner: int, heads: int, depth: int, decodes: bool) -> None:
        super().__init__()
        self.decodes = decodes
        self.bias = nn.Embedding(BUCKETS, heads)
        self.blocks = nn.ModuleList(Block(width, inner, heads, decodes) for _ in range(depth))
        self.norm = nn.RMSNorm(width)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        length = x.shape[1]
        bias = self.bias(buckets(length, not self.decodes, x.device)).permute(2, 0, 1)
        if self.decodes:
            future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            bias = bias.masked_fill(future, -1e9 if bias.dtype == torch.float32 else -1e4)
        for block in self.blocks:
            x = block(x, memory, bias)
        return self.norm(x)


class T5(nn.Module):
    """Source and target tokens (batch, length) to target scores."""

    def __init__(self, width: int, inner: int, heads: int, depth: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.encoder = Stack(width, inner, heads, depth, decodes=False)
        self.decoder = Stack(width, inner, heads, depth, decodes=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        y = self.decoder(self.token(target), self.encoder(self.token(source)))
        return F.linear(y * y.shape[-1] ** -0.5, self.token.weight)


def _batch(batch_size: int, length: int) -> dict[str, Tensor]:
    return {
        "source": torch.randint(VOCABULARY, (batch_size, length)),
        "target": torch.randint(VOCABULARY, (batch_size, max(length // 4, 1))),
        "gold": torch.randint(VOCABULARY, (batch_size * max(length // 4, 1),)),
    }


def _loss(model: nn.Module, batch: Any, _memo: dict[str, Any]) -> Tensor:
    return F.cross_entropy(model(batch["source"], batch["target"]).flatten(0, 1), batch["gold"])


def _entry(size: str, width: int, inner: int, heads: int, depth: int, parameters: int) -> ZooEntry:
    return ZooEntry(
        name=f"t5-{size}",
        family="t5",
        model=lambda: T5(width, inner, heads, depth),
        batch=_batch,
        phases=(Phase(_loss),),
        batch_size=8,
        sequence_length=512,
        optimizer="adamw",
        parameters=parameters,
        source=f"published weights of google-t5/t5-{size}, embeddings shared",
        description=f"T5 of {depth}+{depth} layers of width {width}; targets a quarter as long as sources",
    )


ENTRIES = (
    _entry("small", 512, 2048, 8, 6, 60_506_624),
    _entry("base", 768, 3072, 12, 12, 222_903_552),
)
