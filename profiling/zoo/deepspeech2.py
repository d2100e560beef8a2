"""DeepSpeech2 (Amodei et al. 2016) on LibriSpeech, as in SeanNaren/deepspeech.pytorch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.training import Phase
from profiling.zoo.entry import ZooEntry

FREQUENCIES, CHARACTERS, WIDTH = 161, 29, 1024


class RecurrentLayer(nn.Module):
    """Bidirectional LSTM with summed directions, preceded by a batch norm except in the first layer."""

    def __init__(self, inputs: int, width: int, normalise: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(inputs) if normalise else None
        self.rnn = nn.LSTM(inputs, width, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        if self.norm is not None:
            x = self.norm(x.flatten(0, 1)).view(x.shape)
        x, _ = self.rnn(x)
        return x.view(*x.shape[:2], 2, -1).sum(2)


class DeepSpeech2(nn.Module):
    """Spectrogram (batch, 1, 161, frames) to character log-probabilities (time, batch, 29)."""

    def __init__(self, layers: int = 5) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5)),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20, inplace=True),
            nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5)),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20, inplace=True),
        )
        inputs = 32 * 41
        self.rnns = nn.Sequential(
            *(RecurrentLayer(WIDTH if i else inputs, WIDTH, i > 0) for i in range(layers))
        )
        self.norm = nn.BatchNorm1d(WIDTH)
        self.fc = nn.Linear(WIDTH, CHARACTERS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.rnns(self.conv(x).flatten(1, 2).permute(2, 0, 1))
        scores = self.fc(self.norm(x.flatten(0, 1))).view(*x.shape[:2], CHARACTERS)
        return F.log_softmax(scores, -1)


def _batch(batch_size: int, frames: int) -> dict[str, Tensor]:
    # LibriSpeech has about 15 characters per second, and 100 frames.
    letters = max(1, frames * 15 // 100)
    return {
        "spectrogram": torch.randn(batch_size, 1, FREQUENCIES, frames),
        "target": torch.randint(1, CHARACTERS, (batch_size, letters)),
    }


def ctc_loss(model: nn.Module, batch: Any, _memo: dict[str, Any]) -> Tensor:
    scores = model(batch["spectrogram"])
    time, count = scores.shape[:2]
    letters = batch["target"].shape[1]
    return F.ctc_loss(scores, batch["target"], (time,) * count, (letters,) * count, zero_infinity=True)


def _closed_form(layers: int = 5) -> int:
    convolutions = 32 * 41 * 11 + 32 + 32 * 32 * 21 * 11 + 32 + 2 * 2 * 32
    recurrent = sum(
        2 * 4 * (inputs * WIDTH + WIDTH * WIDTH + 2 * WIDTH) for inputs in [32 * 41] + [WIDTH] * (layers - 1)
    )
    return convolutions + recurrent + layers * 2 * WIDTH + WIDTH * CHARACTERS


ENTRIES = (
    ZooEntry(
        name="deepspeech2-librispeech",
        family="deepspeech2",
        model=DeepSpeech2,
        batch=_batch,
        phases=(Phase(ctc_loss),),
        batch_size=16,
        sequence_length=1200,
        optimizer="momentum",
        parameters=_closed_form(),
        source="closed form of github.com/SeanNaren/deepspeech.pytorch: 5 bidirectional LSTM layers of 1024, 29 characters",
        description="DeepSpeech2 on 12 s of speech (1,200 frames)",
    ),
)
