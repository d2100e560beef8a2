"""Random batches and losses that several families share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.training import Phase


def images(size: int, classes: int, channels: int = 3) -> Callable[[int, int], Any]:
    """Batches of `{"image": (batch, channels, size, size), "label": (batch,)}`."""

    def batch(batch_size: int, _: int) -> dict[str, Tensor]:
        return {
            "image": torch.randn(batch_size, channels, size, size),
            "label": torch.randint(classes, (batch_size,)),
        }

    return batch


def _classify(model: nn.Module, batch: Any, _memo: dict[str, Any]) -> Tensor:
    return F.cross_entropy(model(batch["image"]), batch["label"])


CLASSIFY = (Phase(_classify),)
"""Image classification by cross-entropy."""
