"""Builds modules without initialising their weights.

On the CPU, their memory is reserved but unused; on `meta`, it saves time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_SMALL_ELEMENTS = 1 << 16
_IN_PLACE = frozenset(
    [
        "normal_",
        "uniform_",
        "trunc_normal_",
        "fill_",
        "zero_",
        "mul_",
        "add_",
        "sub_",
        "div_",
        "clamp_",
        "erfinv_",
        "copy_",
        "exponential_",
    ]
)


class _SkipInitialisation(TorchFunctionMode):
    """Skips initialisation of large tensors, whose values do not affect how a module is built.

    Those of small tensors may.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _IN_PLACE and args and isinstance(args[0], Tensor):
            tensor = args[0]
            if tensor.is_meta or tensor.numel() > _SMALL_ELEMENTS:
                return tensor
        if name == "linspace":  # rates of stochastic depth, which networks convert to numbers
            kwargs = {"device": "cpu", **(kwargs or {})}
        return func(*args, **(kwargs or {}))


@contextmanager
def lazy_weights(device: str) -> Iterator[None]:
    """Build modules on `meta`, or on `cpu` if they read values, without initialising their weights."""
    with torch.device(device), _SkipInitialisation():
        yield
