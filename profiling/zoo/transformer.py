"""The base Transformer (Vaswani et al. 2017) for translation, as in jadore801120/attention-is-all-you-need-pytorch."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.training import Phase
from profiling.zoo.entry import ZooEntry

SOURCE_WORDS, TARGET_WORDS, POSITIONS = 2_911, 3_149, 256
"""Words with five or more occurrences in Multi30k, English and German, as its preprocessing reports."""


class Attention(nn.Module):
    """Unfused multi-head attention with residual connection and norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape

        def split(y: Tensor) -> Tensor:
            return y.view(batch, -1, self.heads, width // self.heads).transpose(1, 2)

        query, key, value = split(self.query(x)), split(self.key(memory)), split(self.value(memory))
        scores = query @ key.transpose(2, 3) / math.sqrt(width // self.heads)
        context = self.dropout(scores.masked_fill(mask, -1e4).softmax(-1)) @ value
        context = context.transpose(1, 2).reshape(batch, length, width)
        return self.norm(self.dropout(self.out(context)) + x)


class FeedForward(nn.Module):
    """Two linear layers with residual connection and norm."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, inner)
        self.outer = nn.Linear(inner, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.dropout(self.outer(F.relu(self.inner(x)))) + x)


class Transformer(nn.Module):
    """Encoder and decoder with six layers each; the output projection shares the target embedding."""

    def __init__(self, source: int, target: int, width: int = 512, inner: int = 2048, heads: int = 8) -> None:
        super().__init__()
        self.source = nn.Embedding(source, width)
        self.encoder_attention = nn.ModuleList(Attention(width, heads) for _ in range(6))
        self.encoder_feed = nn.ModuleList(FeedForward(width, inner) for _ in range(6))
        self.target = nn.Embedding(target, width)
        self.decoder_self = nn.ModuleList(Attention(width, heads) for _ in range(6))
        self.decoder_cross = nn.ModuleList(Attention(width, heads) for _ in range(6))
        self.decoder_feed = nn.ModuleList(FeedForward(width, inner) for _ in range(6))
        self.positions: Tensor
        self.register_buffer("positions", torch.zeros(POSITIONS, width), persistent=False)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        keep = (source == 0)[:, None, None, :]
        x = self.source(source) + self.positions[: source.shape[1]]
        for attention, feed in zip(self.encoder_attention, self.encoder_feed, strict=True):
            x = feed(attention(x, x, keep))
        length = target.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=target.device).triu(1)
        y = self.target(target) + self.positions[:length]
        for own, cross, feed in zip(self.decoder_self, self.decoder_cross, self.decoder_feed, strict=True):
            y = feed(cross(own(y, y, causal), x, keep))
        return F.linear(y, self.target.weight) * 512**-0.5


def _batch(batch_size: int, length: int) -> dict[str, Tensor]:
    return {
        "source": torch.randint(SOURCE_WORDS, (batch_size, length)),
        "target": torch.randint(TARGET_WORDS, (batch_size, length)),
        "gold": torch.randint(TARGET_WORDS, (batch_size * length,)),
    }


def _loss(model: nn.Module, batch: Any, _memo: dict[str, Any]) -> Tensor:
    scores = model(batch["source"], batch["target"]).flatten(0, 1)
    return F.cross_entropy(scores, batch["gold"], label_smoothing=0.1)


def _closed_form(width: int = 512, inner: int = 2048) -> int:
    attention = 4 * (width * width + width) + 2 * width
    feed = 2 * width * inner + inner + width + 2 * width
    return (SOURCE_WORDS + TARGET_WORDS) * width + 6 * (attention + feed) + 6 * (2 * attention + feed)


ENTRIES = (
    ZooEntry(
        name="transformer-multi30k",
        family="transformer",
        model=lambda: Transformer(SOURCE_WORDS, TARGET_WORDS),
        batch=_batch,
        phases=(Phase(_loss),),
        batch_size=64,
        sequence_length=28,
        longest_sequence=POSITIONS,
        optimizer="adam",
        parameters=_closed_form(),
        source="closed form: 12 feed-forward and 18 attention parts of width 512, embeddings of 2,911 and 3,149 words",
        description="Transformer of 6+6 layers of width 512 on Multi30k",
    ),
)
