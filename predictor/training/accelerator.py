"""Where training runs: CUDA if available. What is fitted comes back to the CPU, where predictions are made."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def training_device() -> torch.device:
    """CUDA if available, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def sum_in_one_order() -> None:
    """Have MKL add up in one order, so that training again gives the same bits: by default a busy machine may change it.

    It reads this once, before its first product in the process. A setting of the user's own stays.
    """
    os.environ.setdefault("MKL_CBWR", "COMPATIBLE")


def moved(value: T, device: torch.device) -> T:
    """A dataclass of tensors on `device`, and the dataclasses in it."""
    changes: dict[str, Any] = {}
    for name in value.__dataclass_fields__:  # type: ignore[attr-defined]
        part = getattr(value, name)
        if isinstance(part, Tensor):
            changes[name] = part.to(device)
        elif hasattr(part, "__dataclass_fields__"):
            changes[name] = moved(part, device)
    return replace(value, **changes)  # type: ignore[type-var]
