"""Whisper (Radford et al. 2023): 30 s of speech to text."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.training import Phase
from profiling.zoo.entry import ZooEntry

VOCABULARY, MEL_BANDS, FRAMES, TEXT_POSITIONS = 51_865, 80, 3_000, 448


class Attention(nn.Module):
    """Multi-head attention; keys have no bias."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, memory: Tensor, causal: bool = False) -> Tensor:
        batch, length, width = x.shape

        def split(z: Tensor) -> Tensor:
            return z.view(batch, -1, self.heads, width // self.heads).transpose(1, 2)

        query, key, value = split(self.query(x)), split(self.key(memory)), split(self.value(memory))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Pre-norm self-attention, cross-attention to the audio in the decoder, and a feed-forward network."""

    def __init__(self, width: int, heads: int, decodes: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.own = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width) if decodes else None
        self.cross = Attention(width, heads) if decodes else None
        self.norm3 = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 4 * width)
        self.outer = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, audio: Tensor | None = None) -> Tensor:
        y = self.norm1(x)
        x = x + self.own(y, y, causal=self.cross is not None)
        if self.cross is not None and self.norm2 is not None:
            assert audio is not None
            x = x + self.cross(self.norm2(x), audio)
        return x + self.outer(F.gelu(self.inner(self.norm3(x))))


class Whisper(nn.Module):
    """Log-mel spectrograms (batch, 80, 3,000) and tokens (batch, length) to next-token scores."""

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(MEL_BANDS, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.sinusoids: Tensor
        self.register_buffer("sinusoids", torch.zeros(FRAMES // 2, width), persistent=False)
        self.encoder = nn.ModuleList(Block(width, heads, decodes=False) for _ in range(depth))
        self.encoder_norm = nn.LayerNorm(width)
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(TEXT_POSITIONS, width)
        self.decoder = nn.ModuleList(Block(width, heads, decodes=True) for _ in range(depth))
        self.decoder_norm = nn.LayerNorm(width)

    def forward(self, mel: Tensor, tokens: Tensor) -> Tensor:
        audio = F.gelu(self.conv2(F.gelu(self.conv1(mel)))).transpose(1, 2) + self.sinusoids
        for block in self.encoder:
            audio = block(audio)
        audio = self.encoder_norm(audio)
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.decoder:
            x = block(x, audio)
        return F.linear(self.decoder_norm(x), self.token.weight)


def _batch(batch_size: int, length: int) -> dict[str, Tensor]:
    return {
        "mel": torch.randn(batch_size, MEL_BANDS, FRAMES),
        "tokens": torch.randint(VOCABULARY, (batch_size, length)),
        "target": torch.randint(VOCABULARY, (batch_size * length,)),
    }


def _loss(model: nn.Module, batch: Any, _memo: dict[str, Any]) -> Tensor:
    return F.cross_entropy(model(batch["mel"], batch["tokens"]).flatten(0, 1), batch["target"])


def _entry(size: str, width: int, heads: int, depth: int, published: int) -> ZooEntry:
    return ZooEntry(
        name=f"whisper-{size}",
        family="whisper",
        model=lambda: Whisper(width, heads, depth),
        batch=_batch,
        phases=(Phase(_loss),),
        batch_size=8,
        sequence_length=128,
        longest_sequence=TEXT_POSITIONS,
        optimizer="adamw",
        parameters=published - FRAMES // 2 * width,
        source=f"published weights of openai/whisper-{size}, {published:,}, less the audio positions, which are not trained",
        description=f"Whisper of {depth}+{depth} layers of width {width} on 30 s of speech",
    )


ENTRIES = (_entry("small", 768, 12, 12, 241_734_912),)
