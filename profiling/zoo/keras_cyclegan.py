"""CycleGAN at 256x256 as in Keras' code examples: one forward pass, from which four gradients are computed."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.training import Phase
from profiling.zoo.entry import ZooEntry


def _norm(width: int) -> nn.InstanceNorm2d:
    return nn.InstanceNorm2d(width, 1e-3, affine=True)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with reflection padding and without bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.ReflectionPad2d(1),
            nn.Conv2d(width, width, 3, bias=False),
            _norm(width),
            nn.ReLU(),
            nn.ReflectionPad2d(1),
            nn.Conv2d(width, width, 3, bias=False),
            _norm(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


def _generator() -> nn.Sequential:
    layers: list[nn.Module] = [nn.ReflectionPad2d(3), nn.Conv2d(3, 64, 7, bias=False), _norm(64), nn.ReLU()]
    for width in (64, 128):
        layers += [nn.Conv2d(width, 2 * width, 3, 2, 1, bias=False), _norm(2 * width), nn.ReLU()]
    layers += [ResidualBlock(256) for _ in range(9)]
    for width in (256, 128):
        layers.append(nn.ConvTranspose2d(width, width // 2, 3, 2, 1, 1, bias=False))
        layers += [_norm(width // 2), nn.ReLU()]
    return nn.Sequential(*layers, nn.ReflectionPad2d(3), nn.Conv2d(64, 3, 7), nn.Tanh())


def _discriminator() -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2)]
    for width, stride in ((64, 2), (128, 2), (256, 1)):
        layers += _same(stride, nn.Conv2d(width, 2 * width, 4, stride, 1 if stride == 2 else 0, bias=False))
        layers += [_norm(2 * width), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, *_same(1, nn.Conv2d(512, 1, 4)))


def _same(stride: int, convolution: nn.Conv2d) -> list[nn.Module]:
    """`same` padding of Keras for an even kernel with stride 1: one more at the end than at the start."""
    return [nn.ZeroPad2d((1, 2, 1, 2)), convolution] if stride == 1 else [convolution]


class CycleGAN(nn.Module):
    """Generators to Y and to X, and a discriminator for each."""

    def __init__(self) -> None:
        super().__init__()
        self.to_y, self.to_x = _generator(), _generator()
        self.judge_x, self.judge_y = _discriminator(), _discriminator()


def _batch(batch_size: int, _: int) -> dict[str, Tensor]:
    return {"x": torch.randn(batch_size, 3, 256, 256), "y": torch.randn(batch_size, 3, 256, 256)}


def _judged(scores: Tensor, real: bool) -> Tensor:
    return F.mse_loss(scores, torch.full_like(scores, float(real)))


def _forward(model: Any, batch: Any, memo: dict[str, Any]) -> Tensor:
    x, y = batch["x"], batch["y"]
    fake_y, fake_x = model.to_y(x), model.to_x(y)
    cycled_x, cycled_y = model.to_x(fake_y), model.to_y(fake_x)
    same_x, same_y = model.to_x(x), model.to_y(y)
    real = {"x": model.judge_x(x), "y": model.judge_y(y)}
    fake = {"x": model.judge_x(fake_x), "y": model.judge_y(fake_y)}
    for side in ("x", "y"):
        memo[f"judge_{side}"] = (_judged(real[side], True) + _judged(fake[side], False)) / 2
    memo["to_x"] = _judged(fake["x"], True) + 10 * F.l1_loss(cycled_x, x) + 5 * F.l1_loss(same_x, x)
    return _judged(fake["y"], True) + 10 * F.l1_loss(cycled_y, y) + 5 * F.l1_loss(same_y, y)


def _kept(name: str) -> Any:
    def loss(_model: Any, _batch: Any, memo: dict[str, Any]) -> Tensor:
        kept: Tensor = memo[name]
        return kept

    return loss


ENTRIES = (
    ZooEntry(
        name="keras-cyclegan-256",
        family="keras_cyclegan",
        model=CycleGAN,
        batch=_batch,
        phases=(
            Phase(_forward, ("to_y",), shares_forward=True),
            *(Phase(_kept(name), (name,), shares_forward=True) for name in ("to_x", "judge_x", "judge_y")),
        ),
        batch_size=1,
        optimizer="adam",
        parameters=2 * 11_383_427 + 2 * 2_765_633,
        source="closed form of keras.io/examples/generative/cyclegan, instance norms with scale and shift",
        description="Keras' CycleGAN at 256x256, four optimisers",
    ),
)
