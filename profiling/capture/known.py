"""Values of small tensors of whole numbers on `meta`, computed beside the step from inputs on the CPU and constants.

Models read such values, as lengths of sequences and sizes of images, to decide how large other tensors are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from profiling.training import map_tensors, tensors_of

# Set on a tensor: a tensor on the CPU with its values, its version that has them, and whether a caller gave them.
_VALUES = "_values_on_meta"
# The values that a caller gave, and for `x.data`, which has a version of its own, `x`.
_GIVEN, _DATA_OF = "_given_on_meta", "_data_of_on_meta"
_MAX_VALUES = 65_536
_CONSTANTS = frozenset({"tensor", "arange", "zeros", "ones", "full"})
_DRAWN = ("rand", "multinomial", "bernoulli", "empty", "new_empty")
_WITHOUT_VALUES = frozenset({"__set__", "geometric_", "resize_", "resize_as_"})
# Functions whose results have a size that depends on values.
_SELECTIONS = frozenset({"nonzero", "argwhere", "unique", "unique_consecutive", "bincount"})
_INDEXING = ("__getitem__", "__setitem__")
# Functions of sizes, and methods of a tensor and sizes.
_OF_SIZES = frozenset({"arange", "zeros", "ones", "full", "empty", "rand", "randn"})
_WITH_SIZES = frozenset({"view", "reshape", "expand", "narrow", "split", "repeat", "new_zeros", "new_ones"})


def remember(tensor: Tensor, values: Tensor, is_given: bool = True) -> None:
    """Set the values of a tensor on `meta`, if they are few whole numbers on the CPU.

    Not of one made in inference mode, which has no version, so changes would not be noticed.
    """
    is_small = values.device.type == "cpu" and _is_whole(values) and values.numel() <= _MAX_VALUES
    if is_small and not tensor.is_inference():
        setattr(tensor, _VALUES, (values, tensor._version, is_given))
        if is_given:
            setattr(tensor, _GIVEN, values)


def renew(batch: Any) -> None:
    """Say that inputs have the values that they were given, although a pass before has changed them in place."""
    for tensor in tensors_of(batch):
        values = getattr(tensor, _GIVEN, None)
        if values is not None and values.shape == tensor.shape:
            remember(tensor, values)


def values_of(tensor: Any, is_given: bool = False) -> Tensor | None:
    """The values of a tensor; None if they are unknown or have changed.

    Args:
        is_given: whether values that the step has computed count as unknown.
    """
    values, version, given = getattr(tensor, _VALUES, (None, 0, False))
    return values if values is not None and version == tensor._version and given >= is_given else None


def with_values(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Arguments of the function `name` with known values where torch would read them itself."""
    if name in _OF_SIZES or name in _WITH_SIZES:
        own = args[: name in _WITH_SIZES]
        sizes = args[len(own) :]
        has_tensors = next(tensors_of(sizes), None) is not None
        return (*own, *map_tensors(sizes, _number)) if has_tensors else args, kwargs
    if name == "repeat_interleave":
        return args, _with_size(args, kwargs)
    if name == "_pack_padded_sequence" and (lengths := values_of(args[1])) is not None:
        return (args[0], lengths, *args[2:]), kwargs  # which must be on the CPU
    if name in _INDEXING and isinstance(args[0], Tensor) and args[0].is_meta:
        return (args[0], _index(args[1]), *args[2:]), kwargs
    return args, kwargs


def selected(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a function whose size depends on known values; None if they are unknown, or nothing is selected.

    Placeholders for a batch may lack what a model looks for; it is then assumed, as of unknown values, to be everywhere.
    """
    name = getattr(func, "__name__", "")
    # `where` of a mask alone is `nonzero`.
    is_selection = name in _SELECTIONS or (name == "where" and len(args) + len(kwargs) == 1)
    if not is_selection or any(values_of(t) is None for t in tensors_of((args, kwargs))):
        return None
    values = _on_host(func, args, kwargs)
    is_empty = values is None or any(not t.numel() for t in tensors_of(values))
    return None if is_empty else map_tensors(values, _shadow)


def changed(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The values that a function in place is about to give its first argument; None if they are unknown."""
    name = getattr(func, "__name__", "")
    is_of_values = not name.startswith((*_DRAWN, "_foreach_")) and name not in _WITHOUT_VALUES
    if (
        not _is_in_place(name)
        or not is_of_values
        or any(values_of(t) is None for t in tensors_of((args, kwargs)))
    ):
        return None
    values = values_of(args[0]) if args else None
    if values is None:
        return None
    copy = values.clone()

    def apply(*rest: Any, **options: Any) -> Tensor:
        func(copy, *rest, **options)
        return copy

    result: Tensor | None = _on_host(apply, args[1:], kwargs)
    return result


def compute(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    out: Any,
    after: Tensor | None = None,
) -> None:
    """Set the values of `func(*args, **kwargs) == out` if those of its arguments are known.

    Args:
        after: what `changed` said of a function in place.
    """
    results = list(tensors_of(out))
    name = getattr(func, "__name__", "")
    is_data = getattr(getattr(func, "__self__", None), "__name__", "") == "data"
    if _is_in_place(name):
        if name == "__set__":
            if not is_data:
                return
            after = values_of(args[1])
        # No version grows by way of `x.data`, nor if a recorder gets a list whole.
        for tensor in tensors_of(args[:1]):
            for own in (tensor, *getattr(tensor, _DATA_OF, ())):
                vars(own).pop(_VALUES, None)
                if after is not None:
                    remember(own, after, is_given=False)
        return
    # Not of `torch.export`, whose tensors are of another class.
    may_be_known = (
        type(t) is Tensor and t.is_meta and _is_whole(t) and t.numel() <= _MAX_VALUES for t in results
    )
    if not results or not all(may_be_known) or not _is_pure(name, kwargs):
        return
    given = list(tensors_of((args, kwargs)))
    if any(values_of(t) is None for t in given) or not (given or name in _CONSTANTS):
        return
    values = list(tensors_of(_on_host(func, args, kwargs if given else {**kwargs, "device": "cpu"})))
    # Where a selection is assumed to be complete, there are more results than values.
    if [v.shape for v in values] == [t.shape for t in results]:
        for tensor, value in zip(results, values, strict=True):
            if not any(tensor is own for own in given):  # as `contiguous` returns its argument
                remember(tensor, value, is_given=False)
                if is_data:
                    setattr(tensor, _DATA_OF, (*given, *getattr(given[0], _DATA_OF, ())))


def decide(drawn: Tensor, is_on_host: bool) -> None:
    """Set a number that a model draws on the host, as LayerDrop does: what happens in less than half of the steps does not.

    Otherwise a capture would lack layers at random.

    Args:
        drawn: by a function that draws numbers.
        is_on_host: whether it was drawn on the default device, which is `meta` while a capture takes it for the input's.
    """
    if drawn.numel() != 1:
        return
    with _disable_current_modes(), torch.no_grad():
        if not drawn.is_meta:
            drawn.fill_(0.5)
        elif is_on_host and not drawn.is_inference():
            values = torch.full(drawn.shape, 0.5, dtype=drawn.dtype, device="cpu")
            setattr(drawn, _VALUES, (values, drawn._version, False))


def _on_host(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function returns for known values; None if it cannot be computed."""
    if "device" in kwargs:
        kwargs = {**kwargs, "device": "cpu"}
    args = tuple("cpu" if isinstance(a, torch.device) else a for a in args)
    # Otherwise a recorder would take it for a part of the step.
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        try:
            args, kwargs = map_tensors((args, kwargs), values_of)  # type: ignore[arg-type]
            return func(*args, **kwargs)
        except Exception:  # an operator may lack a kernel for whole numbers
            return None


def _shadow(values: Tensor) -> Tensor:
    tensor = torch.empty_like(values, device="meta")
    remember(tensor, values, is_given=False)
    return tensor


def _number(value: Any) -> Any:
    values = values_of(value) if isinstance(value, Tensor) and value.numel() == 1 else None
    return value if values is None else values.item()


def _with_size(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    given = {**dict(zip(("input", "repeats", "dim"), args, strict=False)), **kwargs}
    # A single argument is the repeats of 0, 1, 2, ...
    source = given.get("input") if "repeats" in given else None
    repeats = given.get("repeats", given.get("input"))
    values = values_of(repeats) if isinstance(repeats, Tensor) else None
    if values is None or kwargs.get("output_size") is not None:
        return kwargs
    size = sum(values.tolist())
    if source is not None and values.numel() == 1:
        dim = given.get("dim")
        size *= source.numel() if dim is None else source.shape[dim]
    return {**kwargs, "output_size": size}


def _index(index: Any) -> Any:
    """The index with numbers in slices, and positions in place of masks, where their values are known.

    So it selects as many elements as they do.
    """
    parts: list[Any] = []
    for part in index if isinstance(index, tuple) else (index,):
        if isinstance(part, slice):
            part = slice(*map(_number, (part.start, part.stop, part.step)))
        is_mask = isinstance(part, Tensor) and part.dtype == torch.bool and part.dim()
        places = values_of(selected(Tensor.nonzero, (part,), {})) if is_mask else None
        parts += [part] if places is None else map(_shadow, places.unbind(1))
    return tuple(parts) if isinstance(index, tuple) or len(parts) > 1 else parts[0]


def _is_whole(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex()


def _is_in_place(name: str) -> bool:
    is_special = name.startswith("__")
    of_operator = name in ("__setitem__", "__set__") or (name.startswith("__i") and name != "__invert__")
    return of_operator or (name.endswith("_") and not is_special)


def _is_pure(name: str, kwargs: dict[str, Any]) -> bool:
    """Whether a function neither changes its arguments nor draws its result."""
    return not _is_in_place(name) and "out" not in kwargs and not name.startswith(_DRAWN) and name != "new"
