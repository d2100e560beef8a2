"""BERT (Devlin et al. 2019) and RoBERTa (Liu et al. 2019) with unfused attention, which stores the scores."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.training import Phase
from profiling.zoo.entry import ZooEntry


class SelfAttention(nn.Module):
    """Unfused multi-head attention with an additive mask (batch, 1, 1, length)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        query = self.query(x).view(shape).transpose(1, 2)
        key = self.key(x).view(shape).transpose(1, 2)
        value = self.value(x).view(shape).transpose(1, 2)
        scores = query @ key.transpose(-1, -2) / math.sqrt(width // self.heads) + mask
        context = self.dropout(scores.softmax(-1)) @ value
        return self.output(context.transpose(1, 2).reshape(batch, length, width))


class EncoderLayer(nn.Module):
    """Post-norm attention and feed-forward network, with residual connections."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.attention = SelfAttention(width, heads, dropout)
        self.norm1 = nn.LayerNorm(width, eps=1e-12)
        self.inner = nn.Linear(width, inner)
        self.outer = nn.Linear(inner, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norm1(x + self.dropout(self.attention(x, mask)))
        return self.norm2(x + self.dropout(self.outer(F.gelu(self.inner(x)))))


class Embeddings(nn.Module):
    """Normalised sum of token, position and segment embeddings."""

    def __init__(self, vocabulary: int, positions: int, segments: int, width: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(positions, width)
        self.segment = nn.Embedding(segments, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, segments: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.segment(segments) + self.position(positions)
        return self.dropout(self.norm(x))


class Encoder(nn.Module):
    """Embeddings and a stack of layers."""

    def __init__(
        self, vocabulary: int, positions: int, segments: int, width: int, depth: int, heads: int
    ) -> None:
        super().__init__()
        self.embeddings = Embeddings(vocabulary, positions, segments, width, 0.1)
        self.layers = nn.ModuleList(EncoderLayer(width, heads, 4 * width, 0.1) for _ in range(depth))

    def forward(self, tokens: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        x = self.embeddings(tokens, segments)
        mask = (1.0 - mask[:, None, None, :].to(x.dtype)) * -1e4
        for layer in self.layers:
            x = layer(x, mask)
        return x


class SpanModel(nn.Module):
    """Question answering: start and end logits per token."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder(30_522, 512, 2, 768, 12, 12)
        self.qa_outputs = nn.Linear(768, 2)

    def forward(self, tokens: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        return self.qa_outputs(self.encoder(tokens, segments, mask))


class PairModel(nn.Module):
    """RoBERTa with the two-layer classifier on the first token."""

    def __init__(self, width: int, depth: int, heads: int, classes: int) -> None:
        super().__init__()
        self.encoder = Encoder(50_265, 514, 1, width, depth, heads)
        self.dense = nn.Linear(width, width)
        self.out = nn.Linear(width, classes)
        self.dropout = nn.Dropout(0.1)

    def forward(self, tokens: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        x = self.dropout(self.encoder(tokens, segments, mask)[:, 0])
        return self.out(self.dropout(torch.tanh(self.dense(x))))


def _inputs(vocabulary: int, segments: int, batch_size: int, length: int) -> dict[str, Tensor]:
    return {
        "tokens": torch.randint(vocabulary, (batch_size, length)),
        "segments": torch.randint(segments, (batch_size, length)),
        "mask": torch.ones(batch_size, length, dtype=torch.long),
    }


def _span_batch(batch_size: int, length: int) -> dict[str, Tensor]:
    ends = {name: torch.randint(length, (batch_size,)) for name in ("start", "end")}
    return {**_inputs(30_522, 2, batch_size, length), **ends}


def _span_loss(model: nn.Module, batch: Any, _memo: dict[str, Any]) -> Tensor:
    start, end = model(batch["tokens"], batch["segments"], batch["mask"]).unbind(-1)
    return (F.cross_entropy(start, batch["start"]) + F.cross_entropy(end, batch["end"])) / 2


def _pair_batch(batch_size: int, length: int) -> dict[str, Tensor]:
    return {**_inputs(50_265, 1, batch_size, length), "label": torch.randint(2, (batch_size,))}


def _pair_loss(model: nn.Module, batch: Any, _memo: dict[str, Any]) -> Tensor:
    return F.cross_entropy(model(batch["tokens"], batch["segments"], batch["mask"]), batch["label"])


ENTRIES = (
    ZooEntry(
        name="bert-base-squad",
        family="bert",
        model=SpanModel,
        batch=_span_batch,
        phases=(Phase(_span_loss),),
        batch_size=8,
        sequence_length=384,
        longest_sequence=512,
        optimizer="adamw",
        parameters=108_893_186,
        source="closed form of bert-base-uncased (109,482,240) without pooler (590,592), with a 768x2 head",
        description="BERT-base question answering on SQuAD",
    ),
    ZooEntry(
        name="roberta-base-qnli",
        family="bert",
        model=lambda: PairModel(768, 12, 12, 2),
        batch=_pair_batch,
        phases=(Phase(_pair_loss),),
        batch_size=16,
        sequence_length=128,
        longest_sequence=512,
        optimizer="adamw",
        parameters=124_647_170,
        source="transformers RobertaForSequenceClassification of roberta-base with 2 labels",
        description="RoBERTa-base on QNLI pairs",
    ),
    ZooEntry(
        name="roberta-large-qnli",
        family="bert",
        model=lambda: PairModel(1024, 24, 16, 2),
        batch=_pair_batch,
        phases=(Phase(_pair_loss),),
        batch_size=8,
        sequence_length=128,
        longest_sequence=512,
        optimizer="adamw",
        parameters=355_361_794,
        source="transformers RobertaForSequenceClassification of roberta-large with 2 labels",
        description="RoBERTa-large on QNLI pairs",
    ),
)
