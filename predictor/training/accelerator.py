"""Device for training: CUDA if available. Results are moved back to the CPU, where predictions are made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def training_device() -> torch.device:
    """CUDA if available, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def moved(value: T, device: torch.device) -> T:
    """Move a dataclass of tensors, and nested dataclasses, to `device`."""
    changes: dict[str, Any] = {}
    for name in value.__dataclass_fields__:  # type: ignore[attr-defined]
        part = getattr(value, name)
        if isinstance(part, Tensor):
            changes[name] = part.to(device)
        elif hasattr(part, "__dataclass_fields__"):
            changes[name] = moved(part, device)
    return replace(value, **changes)  # type: ignore[type-var]
