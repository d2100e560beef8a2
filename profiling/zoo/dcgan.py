"""DCGAN (Radford et al. 2016), 64x64, as in pytorch/examples."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.training import Phase
from profiling.zoo.entry import ZooEntry

NOISE = 100


class Generator(nn.Module):
    """Noise (batch, 100, 1, 1) to images (batch, 3, 64, 64)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.ConvTranspose2d(NOISE, width * 8, 4, 1, 0, bias=False)]
        for factor in (8, 4, 2):
            layers += [nn.BatchNorm2d(width * factor), nn.ReLU(inplace=True)]
            layers.append(nn.ConvTranspose2d(width * factor, width * factor // 2, 4, 2, 1, bias=False))
        layers += [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        layers += [nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh()]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Discriminator(nn.Module):
    """Images to one logit per image."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)]
        for factor in (1, 2, 4):
            layers.append(nn.Conv2d(width * factor, width * factor * 2, 4, 2, 1, bias=False))
            layers += [nn.BatchNorm2d(width * factor * 2), nn.LeakyReLU(0.2, inplace=True)]
        layers.append(nn.Conv2d(width * 8, 1, 4, 1, 0, bias=False))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).flatten()


class DCGAN(nn.Module):
    """Generator and discriminator, which a step trains in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = Generator()
        self.discriminator = Discriminator()


def _batch(batch_size: int, _: int) -> dict[str, Tensor]:
    return {"image": torch.randn(batch_size, 3, 64, 64), "noise": torch.randn(batch_size, NOISE, 1, 1)}


def _judge(logits: Tensor, real: bool) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(real)))


def _discriminate(model: Any, batch: Any, memo: dict[str, Any]) -> Tensor:
    memo["fake"] = model.generator(batch["noise"])
    real = _judge(model.discriminator(batch["image"]), True)
    return real + _judge(model.discriminator(memo["fake"].detach()), False)


def _generate(model: Any, batch: Any, memo: dict[str, Any]) -> Tensor:
    fake = memo.pop("fake") if "fake" in memo else model.generator(batch["noise"])
    return _judge(model.discriminator(fake), True)


ENTRIES = (
    ZooEntry(
        name="dcgan-64",
        family="dcgan",
        model=DCGAN,
        batch=_batch,
        phases=(Phase(_discriminate, ("discriminator",)), Phase(_generate, ("generator",))),
        batch_size=64,
        optimizer="adam",
        parameters=3_576_704 + 2_765_568,
        source="github.com/pytorch/examples, dcgan: generator 3,576,704 and discriminator 2,765,568",
        description="DCGAN on 64x64 images, one step of each network",
    ),
)
