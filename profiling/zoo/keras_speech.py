"""DeepSpeech2 on LJSpeech, as in Keras' code examples (ctc_asr)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.training import Phase
from profiling.zoo.deepspeech2 import ctc_loss
from profiling.zoo.entry import ZooEntry

FREQUENCIES, CHARACTERS, WIDTH = 193, 32, 512


class DeepSpeech2(nn.Module):
    """Spectrogram (batch, 1, frames, 193) to character log-probabilities (time, batch, 32)."""

    def __init__(self, layers: int = 5) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 32, (11, 41), (2, 2), (5, 20), bias=False),
            nn.BatchNorm2d(32, 1e-3),
            nn.ReLU(),
            nn.Conv2d(32, 32, (11, 21), (1, 2), (5, 10), bias=False),
            nn.BatchNorm2d(32, 1e-3),
            nn.ReLU(),
        )
        self.rnns = nn.ModuleList(
            nn.GRU(2 * WIDTH if i else 32 * 49, WIDTH, bidirectional=True) for i in range(layers)
        )
        self.dropout = nn.Dropout(0.5)
        self.dense = nn.Linear(2 * WIDTH, 2 * WIDTH)
        self.out = nn.Linear(2 * WIDTH, CHARACTERS)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).permute(2, 0, 3, 1).flatten(2)
        for i, rnn in enumerate(self.rnns):
            x, _ = rnn(self.dropout(x) if i else x)
        return F.log_softmax(self.out(self.dropout(F.relu(self.dense(x)))), -1)


def _batch(batch_size: int, frames: int) -> dict[str, Tensor]:
    # LJSpeech has about 15 characters per second, and 138 frames (22.05 kHz, hop 160).
    letters = max(1, frames * 15 // 138)
    return {
        "spectrogram": torch.randn(batch_size, 1, frames, FREQUENCIES),
        "target": torch.randint(1, CHARACTERS, (batch_size, letters)),
    }


ENTRIES = (
    ZooEntry(
        name="keras-deepspeech2-ljspeech",
        family="keras_speech",
        model=DeepSpeech2,
        batch=_batch,
        phases=(Phase(ctc_loss),),
        batch_size=8,
        sequence_length=1200,
        optimizer="adam",
        parameters=26_628_352,
        source="keras.io/examples/audio/ctc_asr: 26,628,480 parameters, 128 of them running statistics",
        description="DeepSpeech2 with GRU layers on 8.7 s of speech (1,200 frames)",
    ),
)
