"""Values for control flow that depends on data, which `meta` tensors lack: masks are full, numbers finite and in range.

Language models check whether any token is padded, and use a cheaper kernel if not. The recorded step has a batch
without padding, as in measurements; a loss checks whether a variance is negative. Any other dependence on values is
an error.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Attributes set on tensors: the value of `bool(tensor)`, that of `bool(tensor.any())`, and the sum of a mask.
_TRUTH, _ANY, _COUNT = "_truth_on_meta", "_any_on_meta", "_count_on_meta"
_BELOW = ("lt", "__lt__")
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
    """Assumed value of `bool(tensor)`; None if unknown."""
    answer: bool | None = getattr(tensor, _TRUTH, None)
    return answer


def note(name: str, args: tuple[Any, ...], out: Any) -> None:
    """Set on the result `out` of the operator `name` what `truth_of` needs to know later."""
    if name not in _ASKED or not args or not isinstance(out, Tensor) or not out.is_meta:
        return
    source = args[0]
    if name in ("isinf", "isnan"):
        setattr(out, _TRUTH, False)
    elif name in _BELOW and len(args) > 1 and args[1] == 0 and getattr(source, "is_floating_point", bool)():
        setattr(out, _ANY, False)
    elif name in _COMPARISONS:
        count = getattr(source, _COUNT, None)
        if count is not None and len(args) > 1 and isinstance(args[1], int):
            setattr(out, _TRUTH, _COMPARISONS[name](count, args[1]))
    elif out.dim() or not isinstance(source, Tensor):
        return
    elif name == "all":
        setattr(out, _TRUTH, True)
    elif name == "any" and (truth_of(source) is False or getattr(source, _ANY, None) is False):
        setattr(out, _TRUTH, False)
    elif name == "sum" and source.dtype == torch.bool:
        setattr(out, _COUNT, source.numel())
