"""Decoder-only transformers with the sizes of GPT-3 (Brown et al. 2020, table 2.1) and fused causal attention."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.training import Phase
from profiling.zoo.entry import ZooEntry

VOCABULARY, POSITIONS = 50_257, 2_048


class Block(nn.Module):
    """Pre-norm causal attention and feed-forward network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 4 * width)
        self.outer = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.outer(F.gelu(self.inner(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """Learned positions; the output projection shares the token embedding."""

    def __init__(self, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(POSITIONS, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(positions)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token.weight)


def _batch(batch_size: int, length: int) -> dict[str, Tensor]:
    return {
        "tokens": torch.randint(VOCABULARY, (batch_size, length)),
        "target": torch.randint(VOCABULARY, (batch_size * length,)),
    }


def _loss(model: nn.Module, batch: Any, _memo: dict[str, Any]) -> Tensor:
    return F.cross_entropy(model(batch["tokens"]).flatten(0, 1), batch["target"])


def _entry(size: str, width: int, depth: int, heads: int, batch_size: int) -> ZooEntry:
    return ZooEntry(
        name=f"gpt-{size}",
        family="gpt",
        model=lambda: GPT(width, depth, heads),
        batch=_batch,
        phases=(Phase(_loss),),
        batch_size=batch_size,
        sequence_length=1024,
        longest_sequence=POSITIONS,
        optimizer="adamw",
        parameters=(VOCABULARY + POSITIONS) * width + depth * (12 * width * width + 13 * width) + 2 * width,
        source="closed form of Brown et al. 2020, table 2.1: 12 w^2 + 13 w per layer, tied embeddings",
        description=f"GPT of {depth} layers of width {width}",
    )


ENTRIES = (
    _entry("125m", 768, 12, 12, 8),
    _entry("350m", 1024, 24, 16, 4),
    _entry("760m", 1536, 24, 16, 2),
    _entry("1.3b", 2048, 24, 16, 2),
    _entry("2.7b", 2560, 32, 32, 1),
    _entry("7b", 4096, 32, 32, 1),
)
