"""U-Net 3D (Cicek et al. 2016) as in the MLPerf training benchmark on KiTS19."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.training import Phase
from profiling.zoo.entry import ZooEntry

WIDTHS = (32, 64, 128, 256, 320, 320)
CLASSES, SIZE = 3, 128


def _pair(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i in range(2):
        layers.append(nn.Conv3d(outputs if i else inputs, outputs, 3, 1 if i else stride, 1, bias=False))
        layers += [nn.InstanceNorm3d(outputs, affine=True), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet3D(nn.Module):
    """Six levels with skip connections: (batch, 1, 128, 128, 128) to (batch, 3, 128, 128, 128)."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            _pair(WIDTHS[i - 1] if i else 1, width, 2 if i else 1) for i, width in enumerate(WIDTHS)
        )
        self.up = nn.ModuleList()
        self.merge = nn.ModuleList()
        for deep, width in zip(WIDTHS[:0:-1], WIDTHS[-2::-1], strict=True):
            self.up.append(nn.ConvTranspose3d(deep, width, 2, 2))
            self.merge.append(_pair(2 * width, width, 1))
        self.out = nn.Conv3d(WIDTHS[0], CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for level in self.down:
            x = level(x)
            skips.append(x)
        for up, merge, skip in zip(self.up, self.merge, skips[-2::-1], strict=True):
            x = merge(torch.cat((up(x), skip), 1))
        return self.out(x)


def _batch(batch_size: int, _: int) -> dict[str, Tensor]:
    return {
        "image": torch.randn(batch_size, 1, SIZE, SIZE, SIZE),
        "label": torch.randint(CLASSES, (batch_size, SIZE, SIZE, SIZE)),
    }


def _loss(model: nn.Module, batch: Any, _memo: dict[str, Any]) -> Tensor:
    scores = model(batch["image"])
    share = scores.softmax(1)
    truth = F.one_hot(batch["label"], CLASSES).permute(0, 4, 1, 2, 3).to(share.dtype)
    overlap = 2 * (share * truth).sum((2, 3, 4)) / (share.sum((2, 3, 4)) + truth.sum((2, 3, 4)) + 1e-6)
    return F.cross_entropy(scores, batch["label"]) + 1 - overlap.mean()


def _closed_form() -> int:
    def pair(inputs: int, outputs: int) -> int:
        return 27 * (inputs * outputs + outputs * outputs) + 4 * outputs

    down = sum(pair(inputs, outputs) for inputs, outputs in zip((1, *WIDTHS), WIDTHS, strict=False))
    up = sum(8 * a * b + b + pair(2 * b, b) for a, b in zip(WIDTHS[:0:-1], WIDTHS[-2::-1], strict=True))
    return down + up + WIDTHS[0] * CLASSES + CLASSES


ENTRIES = (
    ZooEntry(
        name="unet3d-kits19",
        family="unet3d",
        model=UNet3D,
        batch=_batch,
        phases=(Phase(_loss),),
        batch_size=2,
        optimizer="momentum",
        parameters=_closed_form(),
        source="closed form of the MLPerf training reference image_segmentation (levels 32 to 320, instance norms)",
        description="U-Net 3D on 128x128x128 patches of KiTS19",
    ),
)
