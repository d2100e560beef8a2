"""Answers to what control flow asks about values that `meta` tensors do not have: masks are full, and numbers finite.

Language models ask whether any token is padded, and take a cheaper kernel when none is. What gets recorded is the step of
a batch without padding, as it is when one is measured. Any other question about values stays an error.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Attributes of a tensor: what `bool(tensor)` is, and what a mask sums to.
_TRUTH, _COUNT = "_truth_on_meta", "_count_on_meta"
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "__eq__": operator.eq,
    "ne": operator.ne,
    "__ne__": operator.ne,
    "lt": operator.lt,
    "__lt__": operator.lt,
}
_ASKED = frozenset({"all", "any", "sum", "isinf", "isnan", *_COMPARISONS})


def truth_of(tensor: Any) -> bool | None:
    """What `bool(tensor)` is to say; None where that is unknown."""
    answer: bool | None = getattr(tensor, _TRUTH, None)
    return answer


def note(name: str, args: tuple[Any, ...], out: Any) -> None:
    """Keep with a result what a later question about it is to be answered with."""
    if name not in _ASKED or not args or not isinstance(out, Tensor) or not out.is_meta:
        return
    source = args[0]
    if name in ("isinf", "isnan"):
        setattr(out, _TRUTH, False)
    elif name in _COMPARISONS:
        count = getattr(source, _COUNT, None)
        if count is not None and len(args) > 1 and isinstance(args[1], int):
            setattr(out, _TRUTH, _COMPARISONS[name](count, args[1]))
    elif out.dim() or not isinstance(source, Tensor):
        return
    elif name == "all":
        setattr(out, _TRUTH, True)
    elif name == "any" and truth_of(source) is False:
        setattr(out, _TRUTH, False)
    elif name == "sum" and source.dtype == torch.bool:
        setattr(out, _COUNT, source.numel())
