"""CycleGAN (Zhu et al. 2017) at 256x256: two generators with nine residual blocks, two patch discriminators."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.training import Phase
from profiling.zoo.entry import ZooEntry


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with reflection padding and instance norms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.ReflectionPad2d(1),
            nn.Conv2d(width, width, 3),
            nn.InstanceNorm2d(width),
            nn.ReLU(inplace=True),
            nn.ReflectionPad2d(1),
            nn.Conv2d(width, width, 3),
            nn.InstanceNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


def _generator() -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.ReflectionPad2d(3),
        nn.Conv2d(3, 64, 7),
        nn.InstanceNorm2d(64),
        nn.ReLU(inplace=True),
    ]
    for width in (64, 128):
        layers.append(nn.Conv2d(width, 2 * width, 3, 2, 1))
        layers += [nn.InstanceNorm2d(2 * width), nn.ReLU(inplace=True)]
    layers += [ResidualBlock(256) for _ in range(9)]
    for width in (256, 128):
        layers += [nn.Upsample(scale_factor=2), nn.Conv2d(width, width // 2, 3, 1, 1)]
        layers += [nn.InstanceNorm2d(width // 2), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.ReflectionPad2d(3), nn.Conv2d(64, 3, 7), nn.Tanh())


def _discriminator() -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True)]
    for width in (64, 128, 256):
        layers += [nn.Conv2d(width, 2 * width, 4, 2, 1), nn.InstanceNorm2d(2 * width)]
        layers.append(nn.LeakyReLU(0.2, inplace=True))
    return nn.Sequential(*layers, nn.ZeroPad2d((1, 0, 1, 0)), nn.Conv2d(512, 1, 4, padding=1))


class CycleGAN(nn.Module):
    """Generators to B and to A, and a discriminator for each."""

    def __init__(self) -> None:
        super().__init__()
        self.to_b = _generator()
        self.to_a = _generator()
        self.judge_a = _discriminator()
        self.judge_b = _discriminator()


def _batch(batch_size: int, _: int) -> dict[str, Tensor]:
    return {"a": torch.randn(batch_size, 3, 256, 256), "b": torch.randn(batch_size, 3, 256, 256)}


def _judged(scores: Tensor, real: bool) -> Tensor:
    return F.mse_loss(scores, torch.full_like(scores, float(real)))


def _generate(model: Any, batch: Any, memo: dict[str, Any]) -> Tensor:
    a, b = batch["a"], batch["b"]
    identity = (F.l1_loss(model.to_a(a), a) + F.l1_loss(model.to_b(b), b)) / 2
    fake_b, fake_a = model.to_b(a), model.to_a(b)
    adversarial = (_judged(model.judge_b(fake_b), True) + _judged(model.judge_a(fake_a), True)) / 2
    cycle = (F.l1_loss(model.to_a(fake_b), a) + F.l1_loss(model.to_b(fake_a), b)) / 2
    memo["a"], memo["b"] = fake_a.detach(), fake_b.detach()
    return adversarial + 10.0 * cycle + 5.0 * identity


def _judge(side: str) -> Any:
    def loss(model: Any, batch: Any, memo: dict[str, Any]) -> Tensor:
        judge = model.get_submodule(f"judge_{side}")
        return (_judged(judge(batch[side]), True) + _judged(judge(memo[side]), False)) / 2

    return loss


ENTRIES = (
    ZooEntry(
        name="cyclegan-256",
        family="cyclegan",
        model=CycleGAN,
        batch=_batch,
        phases=(
            Phase(_generate, ("to_b", "to_a")),
            Phase(_judge("a"), ("judge_a",)),
            Phase(_judge("b"), ("judge_b",)),
        ),
        batch_size=1,
        optimizer="adam",
        parameters=2 * 11_378_179 + 2 * 2_764_737,
        source="github.com/eriklindernoren/PyTorch-GAN, cyclegan: generators 11,378,179, discriminators 2,764,737 each",
        description="CycleGAN at 256x256, three optimisers",
    ),
)
