"""U-Net of Stable Diffusion 1 (Rombach et al. 2022), which denoises 64x64 latents given a text of 77 tokens."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.training import Phase
from profiling.zoo.entry import ZooEntry

WIDTHS = (320, 640, 1280, 1280)
TEXT_WIDTH, TEXT_LENGTH, TIME_WIDTH, HEADS, LATENT = 768, 77, 1280, 8, 64


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with the time embedding added between them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(32, inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(TIME_WIDTH, outputs)
        self.norm2 = nn.GroupNorm(32, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.conv2(F.silu(self.norm2(y)))


class Attention(nn.Module):
    """Self-attention, or cross-attention to the text."""

    def __init__(self, width: int, other: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(other, width, bias=False)
        self.value = nn.Linear(other, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        batch, length, width = x.shape

        def split(z: Tensor) -> Tensor:
            return z.view(batch, -1, HEADS, width // HEADS).transpose(1, 2)

        mixed = F.scaled_dot_product_attention(
            split(self.query(x)), split(self.key(other)), split(self.value(other))
        )
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class TransformerBlock(nn.Module):
    """Self-attention, cross-attention and gated feed-forward network, between two pointwise convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width, eps=1e-6)
        self.project_in = nn.Conv2d(width, width, 1)
        self.norm1 = nn.LayerNorm(width)
        self.own = Attention(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.text = Attention(width, TEXT_WIDTH)
        self.norm3 = nn.LayerNorm(width)
        self.gated = nn.Linear(width, 8 * width)
        self.down = nn.Linear(4 * width, width)
        self.project_out = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        y = self.project_in(self.norm(x)).flatten(2).transpose(1, 2)
        z = self.norm1(y)
        y = y + self.own(z, z)
        y = y + self.text(self.norm2(y), text)
        value, gate = self.gated(self.norm3(y)).chunk(2, dim=-1)
        y = y + self.down(value * F.gelu(gate))
        return x + self.project_out(y.transpose(1, 2).reshape(x.shape))


class Step(nn.Module):
    """A residual block, optionally followed by a transformer block."""

    def __init__(self, inputs: int, outputs: int, attends: bool) -> None:
        super().__init__()
        self.residual = ResidualBlock(inputs, outputs)
        self.attention = TransformerBlock(outputs) if attends else None

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        x = self.residual(x, time)
        return x if self.attention is None else self.attention(x, text)


class UNet(nn.Module):
    """Latents (batch, 4, 64, 64), times (batch,), text (batch, 77, 768) to the predicted noise."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(
            nn.Linear(WIDTHS[0], TIME_WIDTH), nn.SiLU(), nn.Linear(TIME_WIDTH, TIME_WIDTH)
        )
        self.stem = nn.Conv2d(4, WIDTHS[0], 3, padding=1)
        last = len(WIDTHS) - 1
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        skips, before = [WIDTHS[0]], WIDTHS[0]
        for level, width in enumerate(WIDTHS):
            for _ in range(2):
                self.down.append(Step(before, width, attends=level < last))
                before = width
                skips.append(width)
            if level < last:
                self.shrink.append(nn.Conv2d(width, width, 3, 2, 1))
                skips.append(width)
        self.middle = nn.ModuleList((Step(before, before, True), Step(before, before, False)))
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        for level in range(last, -1, -1):
            for _ in range(3):
                self.up.append(Step(before + skips.pop(), WIDTHS[level], attends=level < last))
                before = WIDTHS[level]
            if level:
                self.grow.append(nn.Conv2d(before, before, 3, padding=1))
        self.norm = nn.GroupNorm(32, WIDTHS[0])
        self.out = nn.Conv2d(WIDTHS[0], 4, 3, padding=1)

    def forward(self, latent: Tensor, times: Tensor, text: Tensor) -> Tensor:
        half = WIDTHS[0] // 2
        frequency = torch.exp(-math.log(10_000) * torch.arange(half, device=latent.device) / half)
        angles = times[:, None].to(frequency.dtype) * frequency
        time = self.time(torch.cat((angles.cos(), angles.sin()), -1).to(latent.dtype))
        x = self.stem(latent)
        skips = [x]
        for i, step in enumerate(self.down):
            x = step(x, time, text)
            skips.append(x)
            if i % 2 and i // 2 < len(self.shrink):
                x = self.shrink[i // 2](x)
                skips.append(x)
        for step in self.middle:
            x = step(x, time, text)
        for i, step in enumerate(self.up):
            x = step(torch.cat((x, skips.pop()), 1), time, text)
            if i % 3 == 2 and i // 3 < len(self.grow):
                x = self.grow[i // 3](F.interpolate(x, scale_factor=2.0))
        return self.out(F.silu(self.norm(x)))


def _batch(batch_size: int, _: int) -> dict[str, Tensor]:
    return {
        "latent": torch.randn(batch_size, 4, LATENT, LATENT),
        "times": torch.randint(1000, (batch_size,)),
        "text": torch.randn(batch_size, TEXT_LENGTH, TEXT_WIDTH),
        "noise": torch.randn(batch_size, 4, LATENT, LATENT),
    }


def _loss(model: nn.Module, batch: Any, _memo: dict[str, Any]) -> Tensor:
    return F.mse_loss(model(batch["latent"], batch["times"], batch["text"]), batch["noise"])


ENTRIES = (
    ZooEntry(
        name="stable-diffusion-unet-512",
        family="stable_diffusion",
        model=UNet,
        batch=_batch,
        phases=(Phase(_loss),),
        batch_size=4,
        optimizer="adamw",
        parameters=859_520_964,
        source="published weights of the U-Net of stable-diffusion-v1-5",
        description="U-Net of Stable Diffusion 1 on latents of 512x512 images",
    ),
)
