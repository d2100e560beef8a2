"""Keras' code examples for sequences: BERT on IMDB, convolutions over word vectors, a transformer on FordA."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.training import Phase
from profiling.zoo.bert import Encoder
from profiling.zoo.entry import ZooEntry
from profiling.zoo.tasks import CLASSIFY

_CASED_VOCABULARY = 28_996


class Classifier(nn.Module):
    """bert-base-cased with a dense layer on the pooled first token: tokens (batch, length) to (batch, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder(_CASED_VOCABULARY, 512, 2, 768, 12, 12)
        self.pooler = nn.Linear(768, 768)
        self.dropout = nn.Dropout(0.1)
        self.out = nn.Linear(768, 2)

    def forward(self, tokens: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        first = self.encoder(tokens, segments, mask)[:, 0]
        return self.out(self.dropout(torch.tanh(self.pooler(first))))


class WordConvolutions(nn.Module):
    """Three convolutions over frozen word vectors: tokens (batch, 200) to (batch, 20)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20_002, 100).requires_grad_(False)
        self.convolutions = nn.ModuleList(nn.Conv1d(inputs, 128, 5) for inputs in (100, 128, 128))
        self.dense = nn.Linear(128, 128)
        self.dropout = nn.Dropout(0.5)
        self.out = nn.Linear(128, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).transpose(1, 2)
        for i, convolution in enumerate(self.convolutions):
            x = F.relu(convolution(x))
            x = F.max_pool1d(x, 5) if i < 2 else x.amax(2)
        return self.out(self.dropout(F.relu(self.dense(x))))


class SeriesBlock(nn.Module):
    """Attention and two convolutions of width 1 on (batch, time, 1), each with a norm and a residual."""

    def __init__(self, heads: int, key: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.key = heads, key
        self.query_key_value = nn.ModuleList(nn.Linear(1, heads * key) for _ in range(3))
        self.output = nn.Linear(heads * key, 1)
        self.norm1, self.norm2 = nn.LayerNorm(1, 1e-6), nn.LayerNorm(1, 1e-6)
        self.conv1, self.conv2 = nn.Linear(1, inner), nn.Linear(inner, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, _ = x.shape
        query, key, value = (
            layer(x).view(batch, time, self.heads, self.key).transpose(1, 2) for layer in self.query_key_value
        )
        scores = (query * (1.0 / math.sqrt(self.key))) @ key.transpose(-1, -2)
        mixed = self.dropout(scores.softmax(-1)) @ value
        out = self.output(mixed.transpose(1, 2).reshape(batch, time, -1))
        x = x + self.norm1(self.dropout(out))
        out = self.dropout(F.relu(self.conv1(x)))
        return x + self.norm2(self.conv2(out))


class SeriesTransformer(nn.Module):
    """Four blocks over a series, pooled over features: (batch, 500, 1) to (batch, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(SeriesBlock(4, 256, 4, 0.25) for _ in range(4)))
        self.dense = nn.Linear(500, 128)
        self.dropout = nn.Dropout(0.4)
        self.out = nn.Linear(128, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.dropout(F.relu(self.dense(self.blocks(x).mean(2)))))


def _bert_batch(batch_size: int, length: int) -> dict[str, Tensor]:
    return {
        "tokens": torch.randint(_CASED_VOCABULARY, (batch_size, length)),
        "segments": torch.zeros(batch_size, length, dtype=torch.long),
        "mask": torch.ones(batch_size, length, dtype=torch.long),
        "label": torch.randint(2, (batch_size,)),
    }


def _bert_loss(model: nn.Module, batch: Any, _memo: dict[str, Any]) -> Tensor:
    return F.cross_entropy(model(batch["tokens"], batch["segments"], batch["mask"]), batch["label"])


def _words(batch_size: int, length: int) -> dict[str, Tensor]:
    return {
        "image": torch.randint(20_002, (batch_size, length)),
        "label": torch.randint(20, (batch_size,)),
    }


def _series(batch_size: int, _: int) -> dict[str, Tensor]:
    return {"image": torch.randn(batch_size, 500, 1), "label": torch.randint(2, (batch_size,))}


ENTRIES = (
    ZooEntry(
        name="keras-bert-imdb",
        family="keras_sequence",
        model=Classifier,
        batch=_bert_batch,
        phases=(Phase(_bert_loss),),
        batch_size=4,
        sequence_length=512,
        longest_sequence=512,
        optimizer="adam",
        parameters=108_311_810,
        source="transformers BertForSequenceClassification of bert-base-cased (108,310,272) with 2 labels",
        description="BERT-base on IMDB reviews padded to 512 tokens",
    ),
    ZooEntry(
        name="keras-embedding-newsgroups",
        family="keras_sequence",
        model=WordConvolutions,
        batch=_words,
        phases=CLASSIFY,
        batch_size=128,
        sequence_length=200,
        optimizer="rmsprop",
        parameters=2_247_516,
        source="keras.io/examples/nlp/pretrained_word_embeddings: 2,247,516 parameters, 247,316 of them trained",
        description="Convolutions over frozen word vectors on 20 Newsgroups",
    ),
    ZooEntry(
        name="keras-transformer-forda",
        family="keras_sequence",
        model=SeriesTransformer,
        batch=_series,
        phases=CLASSIFY,
        batch_size=64,
        optimizer="adam",
        parameters=93_130,
        source="keras.io/examples/timeseries/timeseries_classification_transformer: 93,130 parameters",
        description="Transformer on series of 500 points",
    ),
)
