"""Transformers among the real training tasks: a small ViT on digits, and a small GPT that is fine-tuned."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.icefrog_tasks import CHARACTERS, LANGUAGES, LINE, Task, digits, lines, next_character_weights

PATCH = 2
WIDTH, DEPTH, HEADS = 48, 4, 4


class Embedded(nn.Module):
    """Tokens or patches with learnt positions.

    Args:
        embed: maps the input to [B, T, width].
        length: T.
    """

    def __init__(self, embed: nn.Module, length: int, width: int) -> None:
        super().__init__()
        self.embed = embed
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self.embed(x)
        return embedded + self.positions[: embedded.shape[1]]


class Patches(nn.Module):
    """Convert [B, 1, 8, 8] images to [B, 16, width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(1, width, PATCH, stride=PATCH)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.project(image).flatten(2).transpose(1, 2)


class Transformer(nn.Module):
    """Pre-norm transformer classifier.

    If `causal`, each token attends only to earlier ones and the last one is classified (as in GPT), otherwise
    the mean.
    """

    def __init__(self, embed: nn.Module, length: int, classes: int, causal: bool) -> None:
        super().__init__()
        self.embedding = Embedded(embed, length, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(DEPTH)
        )
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, classes))
        self.causal = causal

    def states(self, x: torch.Tensor) -> torch.Tensor:
        """[B, T, width] outputs of the last block."""
        x = self.embedding(x)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1]) if self.causal else None
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=self.causal)
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = self.states(x)
        output: torch.Tensor = self.head(states[:, -1] if self.causal else states.mean(1))
        return output

    @property
    def layers(self) -> list[nn.Module]:
        return [self.embedding, *self.blocks, self.head]


def vit() -> Task:
    """The digits of `icefrog_tasks.digits` with a vision transformer, from scratch."""

    def build() -> tuple[nn.Module, list[nn.Module]]:
        model = Transformer(Patches(WIDTH), (8 // PATCH) ** 2, 10, causal=False)
        return model, model.layers

    return Task("vit-digits", build, digits().data, batch_size=32, iterations=400, learning_rate=2e-3)


def gpt() -> Task:
    """Classify lines by language with a GPT pre-trained to predict the next character of eight other
    languages.

    Radford et al., "Improving Language Understanding by Generative Pre-Training", 2018: the last state is
    classified.
    """
    weights: dict[str, torch.Tensor] = {}

    def build() -> tuple[nn.Module, list[nn.Module]]:
        model = Transformer(nn.Embedding(CHARACTERS, WIDTH), LINE, LANGUAGES, causal=True)
        if weights:
            model.load_state_dict({**model.state_dict(), **weights})
        return model, model.layers

    data: Any = lines(11, (8000, 4000))
    other: Any = lines(12, (8000, 100))
    torch.manual_seed(99)
    model = Transformer(nn.Embedding(CHARACTERS, WIDTH), LINE, LANGUAGES, causal=True)
    weights.update(next_character_weights(model, WIDTH, other[0], 32, 1e-3))
    return Task("gpt-fine-tuned", build, data, batch_size=32, iterations=400, learning_rate=1e-3)
