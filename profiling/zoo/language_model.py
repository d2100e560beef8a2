"""The LSTM language model of pytorch/examples `word_language_model` on WikiText-2."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.training import Phase
from profiling.zoo.entry import ZooEntry

VOCABULARY = 33_278


class LanguageModel(nn.Module):
    """Embedding, LSTM and an untied decoder.

    Tokens are (batch, length), transposed to (length, batch) for the LSTM.
    """

    def __init__(self, vocabulary: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.encoder = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, width, layers, dropout=dropout)
        self.decoder = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x, _ = self.rnn(self.dropout(self.encoder(tokens.t())))
        return F.log_softmax(self.decoder(self.dropout(x)).flatten(0, 1), dim=1)


def _batch(batch_size: int, length: int) -> dict[str, Tensor]:
    return {
        "tokens": torch.randint(VOCABULARY, (batch_size, length)),
        "target": torch.randint(VOCABULARY, (length * batch_size,)),
    }


def _loss(model: nn.Module, batch: Any, _memo: dict[str, Any]) -> Tensor:
    return F.nll_loss(model(batch["tokens"]), batch["target"])


ENTRIES = (
    ZooEntry(
        name="lstm-wikitext2",
        family="language_model",
        model=lambda: LanguageModel(VOCABULARY, 200, 2, 0.2),
        batch=_batch,
        phases=(Phase(_loss),),
        batch_size=20,
        sequence_length=35,
        optimizer="sgd",
        parameters=2 * VOCABULARY * 200 + VOCABULARY + 2 * 4 * (2 * 200 * 200 + 2 * 200),
        source="closed form of github.com/pytorch/examples, word_language_model: 13,987,678",
        description="Two-layer LSTM of width 200, 35 steps back through time",
    ),
)
