"""BERT for masked language modelling on WikiText-2, as in pytorch/text; used in the freezing measurements.

Its 103 atomic layers are position, token and segment embeddings and a norm, 12 blocks of 8, and 3 of the head.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.training import Phase
from profiling.zoo.entry import ZooEntry

VOCABULARY, POSITIONS, WIDTH, HEADS = 28_784, 5_000, 768, 12


class Block(nn.Module):
    """A post-norm encoder layer; modules in the order in which they are frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.linear1 = nn.Linear(WIDTH, 4 * WIDTH)
        self.norm1 = nn.LayerNorm(WIDTH, eps=1e-12)
        self.linear2 = nn.Linear(4 * WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH, eps=1e-12)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        shape = (batch, length, HEADS, WIDTH // HEADS)
        query, key, value = (f(x).view(shape).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = query @ key.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
        context = self.dropout(scores.softmax(-1)) @ value
        x = self.norm1(x + self.dropout(self.out(context.transpose(1, 2).reshape(batch, length, WIDTH))))
        return self.norm2(x + self.dropout(self.linear2(self.dropout(F.gelu(self.linear1(x))))))


class MaskedLanguageModel(nn.Module):
    """Token scores at every position."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Embedding(POSITIONS, WIDTH)
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.segment = nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.dropout = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(Block() for _ in range(12))
        self.span = nn.Linear(WIDTH, WIDTH)
        self.span_norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(positions) + self.segment(torch.zeros_like(tokens))
        x = self.dropout(self.norm(x))
        for block in self.blocks:
            x = block(x)
        return self.head(self.span_norm(F.gelu(self.span(x))))


def _batch(batch_size: int, length: int) -> dict[str, Tensor]:
    masked = max(1, round(0.15 * length))
    return {
        "tokens": torch.randint(VOCABULARY, (batch_size, length)),
        "positions": torch.randint(length, (masked,)),
        "target": torch.randint(VOCABULARY, (batch_size, masked)),
    }


def _loss(model: nn.Module, batch: Any, _memo: dict[str, Any]) -> Tensor:
    scores = model(batch["tokens"])[:, batch["positions"]]
    return F.cross_entropy(scores.flatten(0, 1), batch["target"].flatten())


ENTRIES = (
    ZooEntry(
        name="bert-base-wikitext2",
        family="bert_mlm",
        model=MaskedLanguageModel,
        batch=_batch,
        phases=(Phase(_loss),),
        batch_size=24,
        sequence_length=128,
        longest_sequence=POSITIONS,
        optimizer="sgd",
        parameters=133_730_672,
        source="closed form of github.com/pytorch/text examples/BERT with 28,784 tokens and 5,000 positions; the freezing measurements state 1.3373067e8",
        description="BERT-base masked language modelling on WikiText-2",
    ),
)
