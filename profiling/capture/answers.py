"""Values for control flow that depends on data, which `meta` tensors lack: masks are full, numbers finite and in range.

Language models check whether any token is padded, and use a cheaper kernel if not. The recorded step has a batch
without padding, as in measurements, so no number is `in` a tensor of tokens. A loss checks whether a variance is
negative, a distribution whether its arguments are valid. Values are known of small tensors of whole numbers that a
caller passes as inputs on the CPU, such as lengths and labels, of what a model computes of them (`known.py`), and of
the order of packed sequences. Any other dependence on values is an error.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from profiling.capture.known import values_of

# Attributes set on tensors: the value of `bool(tensor)`, that of `bool(tensor.any())`, and the sum of a mask.
_TRUTH, _ANY, _COUNT = "_truth_on_meta", "_any_on_meta", "_count_on_meta"
_READS: dict[str, Callable[[Tensor], Any]] = {
    "cpu": Tensor.clone,
    "tolist": Tensor.tolist,
    "item": Tensor.item,
    "__int__": Tensor.__int__,
    "__float__": Tensor.__float__,
    "__index__": Tensor.__index__,
    "__bool__": Tensor.__bool__,
}
_BELOW = ("lt", "__lt__")
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "__eq__": operator.eq,
    "ne": operator.ne,
    "__ne__": operator.ne,
    "lt": operator.lt,
    "__lt__": operator.lt,
}
_ALL = ("all", "_is_all_true")
_ASKED = frozenset({*_ALL, "any", "sum", "isinf", "isnan", *_COMPARISONS})


def read(name: str, args: tuple[Any, ...]) -> Any:
    """What the function `name`, which reads a tensor's values, returns; None if they are unknown or have changed."""
    if name not in _READS or len(args) != 1:
        return None
    truth = truth_of(args[0]) if name == "item" else None
    if truth is not None:
        return truth  # as of `bool`, of a check such as `(x > 0).all().item()`
    values = values_of(args[0])
    return None if values is None else _READS[name](values)


def contains(tensor: Tensor, element: Any) -> bool | None:
    """`element in tensor`; None if the tensor is not on `meta`, or its values are unknown."""
    values = values_of(tensor, is_given=True) if tensor.is_meta else None
    return None if values is None else element in values


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
    elif name in _BELOW and _is_zero(args[1:]) and getattr(source, "is_floating_point", bool)():
        setattr(out, _ANY, False)
    elif name in _COMPARISONS:
        count = getattr(source, _COUNT, None)
        if count is not None and len(args) > 1 and isinstance(args[1], int):
            setattr(out, _TRUTH, _COMPARISONS[name](count, args[1]))
    elif out.dim() or not isinstance(source, Tensor):
        return
    elif name in _ALL:
        setattr(out, _TRUTH, True)
    elif name == "any" and (truth_of(source) is False or getattr(source, _ANY, None) is False):
        setattr(out, _TRUTH, False)
    elif name == "sum" and source.dtype == torch.bool:
        setattr(out, _COUNT, 0 if truth_of(source) is False else source.numel())


def _is_zero(compared: tuple[Any, ...]) -> bool:
    # A tensor has no truth to ask for.
    return len(compared) > 0 and isinstance(compared[0], int | float) and compared[0] == 0
