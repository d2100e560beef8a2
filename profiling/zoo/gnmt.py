"""GNMT v2 (Wu et al. 2016) as in the MLPerf training benchmark: 4+4 LSTM layers of 1024."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.training import Phase
from profiling.zoo.entry import ZooEntry

VOCABULARY, WIDTH = 32_320, 1_024


class BahdanauAttention(nn.Module):
    """Normalised additive attention over the encoder's outputs, batch first."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.scale = nn.Parameter(torch.empty(1))
        self.vector = nn.Parameter(torch.empty(WIDTH))
        self.bias = nn.Parameter(torch.empty(WIDTH))
        for parameter in (self.scale, self.vector, self.bias):
            nn.init.uniform_(parameter, -0.1, 0.1)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        summed = self.query(query)[:, :, None, :] + self.key(keys)[:, None, :, :] + self.bias
        vector = self.vector / self.vector.norm() * self.scale
        return (torch.tanh(summed) @ vector).softmax(-1) @ keys


class GNMT(nn.Module):
    """Encoder with a bidirectional first layer; decoder in which each layer receives the attention context."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        encoder = [nn.LSTM(WIDTH, WIDTH, bidirectional=True, batch_first=True)]
        encoder += [nn.LSTM(2 * WIDTH if i == 0 else WIDTH, WIDTH, batch_first=True) for i in range(3)]
        self.encoder = nn.ModuleList(encoder)
        self.attention_rnn = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.attention = BahdanauAttention()
        self.decoder = nn.ModuleList(nn.LSTM(2 * WIDTH, WIDTH, batch_first=True) for _ in range(3))
        self.classifier = nn.Linear(WIDTH, VOCABULARY)
        self.dropout = nn.Dropout(0.2)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        x = self.dropout(self.embedding(source))
        for i, rnn in enumerate(self.encoder):
            y, _ = rnn(self.dropout(x) if i else x)
            x = y + x if i >= 2 else y
        y, _ = self.attention_rnn(self.dropout(self.embedding(target)))
        context = self.attention(y, x)
        for i, rnn in enumerate(self.decoder):
            z, _ = rnn(self.dropout(torch.cat((y, context), -1)))
            y = z + y if i else z
        return self.classifier(y)


def _batch(batch_size: int, length: int) -> dict[str, Tensor]:
    return {
        "source": torch.randint(VOCABULARY, (batch_size, length)),
        "target": torch.randint(VOCABULARY, (batch_size, length)),
        "gold": torch.randint(VOCABULARY, (batch_size * length,)),
    }


def _loss(model: nn.Module, batch: Any, _memo: dict[str, Any]) -> Tensor:
    scores = model(batch["source"], batch["target"])
    return F.cross_entropy(scores.flatten(0, 1), batch["gold"], label_smoothing=0.1)


def _lstm(inputs: int) -> int:
    return 4 * (inputs * WIDTH + WIDTH * WIDTH + 2 * WIDTH)


ENTRIES = (
    ZooEntry(
        name="gnmt-wmt16",
        family="gnmt",
        model=GNMT,
        batch=_batch,
        phases=(Phase(_loss),),
        batch_size=64,
        sequence_length=50,
        optimizer="adam",
        parameters=VOCABULARY * WIDTH
        + 2 * _lstm(WIDTH)
        + _lstm(2 * WIDTH)
        + 3 * _lstm(WIDTH)
        + 3 * _lstm(2 * WIDTH)
        + 2 * WIDTH * WIDTH
        + 2 * WIDTH
        + 1
        + WIDTH * VOCABULARY
        + VOCABULARY,
        source="closed form of the MLPerf training reference rnn_translator with 32,320 words (160.7 M)",
        description="GNMT v2 of 4+4 layers of width 1024 on WMT16 German-English",
    ),
)
