"""`OperatorSizes` of a dispatched `aten` operator, from its arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from torch import Tensor

from profiling.operator_sizes import NO_SIZES, OperatorSizes, window_sizes
from profiling.training import tensors_of

Arguments = dict[str, Any]

_by_channel: ContextVar[bool] = ContextVar("by_channel", default=False)


@contextmanager
def kernels_by_channel() -> Iterator[None]:
    """Say of norms and activations called inside that their kernels go through one channel at a time."""
    token = _by_channel.set(True)
    try:
        yield
    finally:
        _by_channel.reset(token)


def sizes_of(func: Any, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> OperatorSizes:
    """Sizes of `func(*args, **kwargs) == out`, an operator of that kind; `NO_SIZES` for kinds without any.

    Covers both the operators that a dispatch mode sees (`convolution`, `addmm`) and those that `torch.export` does
    not decompose (`conv2d`, `linear`). Arguments are identified by their names in the schema.
    """
    rule = _RULES.get(kind)
    first = next(tensors_of(out), None)
    if first is None:
        return NO_SIZES
    sizes = NO_SIZES
    if rule is not None:
        names = (argument.name for argument in func._schema.arguments)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        sizes = rule(given, first)
        if kind == "resize" and func._schema.name.endswith("_aa"):
            # `upsample_gen2d_aa_out_frame` has a block for every sample and channel.
            sizes = replace(sizes, steps=0)
    is_image = first.dim() > 2
    return replace(sizes, groups=first.shape[1]) if _by_channel.get() and is_image else sizes


def _convolution(given: Arguments, out: Tensor) -> OperatorSizes:
    weight, groups = given["weight"], int(given.get("groups", 1))
    return OperatorSizes(
        gemm_batch=groups,
        gemm_m=out.shape[0] * out.shape[2:].numel(),
        gemm_n=weight.shape[0] // groups,
        gemm_k=weight.shape[1:].numel(),
        **_window(given, (weight.shape[1] * groups, weight.shape[0]), groups),
    )


def _transposed_convolution(given: Arguments, out: Tensor) -> OperatorSizes:
    data, weight, groups = given["input"], given["weight"], int(given.get("groups", 1))
    return OperatorSizes(
        gemm_batch=groups,
        gemm_m=data.shape[0] * data.shape[2:].numel(),
        gemm_n=weight.shape[1:].numel(),
        gemm_k=weight.shape[0] // groups,
        **_window(given, (weight.shape[0], weight.shape[1] * groups), groups),
    )


def _window(given: Arguments, channels: tuple[int, int], groups: int) -> dict[str, int]:
    return window_sizes(
        tuple(given["input"].shape[2:]),
        channels,
        tuple(given["weight"].shape[2:]),
        _numbers(given.get("stride", 1)),
        max(_numbers(given.get("dilation", 1))),
        groups,
    )


_FACTORS = (
    ("mat1", "mat2"),
    ("batch1", "batch2"),
    ("mat", "vec"),
    ("input", "weight"),
    ("self", "mat2"),
    ("self", "vec"),
    ("self", "other"),
    ("self", "tensor"),
    ("x1", "x2"),
    ("self", "B"),
)


def _matmul(given: Arguments, out: Tensor) -> OperatorSizes:
    names = next((pair for pair in _FACTORS if pair[0] in given and pair[1] in given), None)
    if names is None or "dims_self" in given:  # of `tensordot`
        return NO_SIZES
    left, right = given[names[0]], given[names[1]]
    # The weight of `linear` and the points of `cdist` are stored transposed.
    columns = right.shape[-2 if names[1] in ("weight", "x2") else -1] if right.dim() > 1 else 1
    batch = right.shape[:-2].numel() if right.dim() > 2 else 1
    summed = left.shape[-1]
    if left.dim() == right.dim() == 2 and out.dim() == 3:  # of `_grouped_mm`, which divides what is summed
        batch, summed = out.shape[0], summed // max(1, out.shape[0])
    return OperatorSizes(
        gemm_batch=batch,
        gemm_m=out.numel() // max(1, batch * columns),
        gemm_n=columns,
        gemm_k=summed,
    )


def _attention(given: Arguments, out: Tensor) -> OperatorSizes:
    query, key = given["query"], given["key"]
    samples, heads = (query.shape[:-3].numel(), query.shape[-3]) if query.dim() > 3 else (1, query.shape[0])
    return OperatorSizes(
        gemm_batch=samples * heads,
        gemm_m=query.shape[-2],
        gemm_n=key.shape[-2],
        gemm_k=query.shape[-1],
        heads=heads,
        query_length=query.shape[-2],
        key_length=key.shape[-2],
        head_width=query.shape[-1],
    )


def _recurrent(given: Arguments, out: Tensor) -> OperatorSizes:
    sequence, state, weights, layers = _recurrent_arguments(given)
    samples, hidden = state.shape[-2], state.shape[-1]
    return OperatorSizes(
        gemm_batch=layers,
        gemm_m=samples,
        gemm_n=max(w.shape[0] for w in weights),
        gemm_k=hidden,
        steps=max(1, sequence.shape[:-1].numel() // max(1, samples)),
        input_channels=sequence.shape[-1],
        output_channels=out.shape[-1],
    )


def _recurrent_arguments(given: Arguments) -> tuple[Tensor, Tensor, Sequence[Tensor], int]:
    """Sequence, hidden state, weights, and number of layers with each direction as one."""
    if "w_ih" in given:  # a cell that `torch.export` keeps
        return given["input"], next(tensors_of(given["hx"])), (given["w_ih"], given["w_hh"]), 1
    directions = 2 if given["bidirectional"] else 1
    if "sequence" in given:
        return given["sequence"], given["state"][0], given["weights"], given["layers"] * directions
    data = given["input"] if "input" in given else given["data"]
    return data, next(tensors_of(given["hx"])), given["params"], given["num_layers"] * directions


def _embedding(given: Arguments, out: Tensor) -> OperatorSizes:
    table = given["weight"]
    return OperatorSizes(table_rows=table.shape[0], table_width=table.shape[-1])


def _batch_norm(given: Arguments, out: Tensor) -> OperatorSizes:
    data = given["input"]
    channels = data.shape[1] if data.dim() > 1 else 1
    return OperatorSizes(
        reduction_size=data.numel() // max(1, channels),
        reduction_count=channels,
        **_image(data),
    )


def _layer_norm(given: Arguments, out: Tensor) -> OperatorSizes:
    return _groups(given["input"], math.prod(given["normalized_shape"]))


def _group_norm(given: Arguments, out: Tensor) -> OperatorSizes:
    data = given["input"]
    groups = int(given["group"] if "group" in given else given["num_groups"])
    count = data.shape[0] * groups
    return OperatorSizes(
        reduction_size=data.numel() // max(1, count), reduction_count=count, groups=groups, **_image(data)
    )


def _softmax(given: Arguments, out: Tensor) -> OperatorSizes:
    data = next(tensors_of(given))
    dims = _numbers(given.get("dim", -1)) if data.dim() else ()
    return _groups(data, math.prod(data.shape[d] for d in dims))


def _reduction(given: Arguments, out: Tensor) -> OperatorSizes:
    data = next(tensors_of(given))
    if out.numel() == data.numel() and data.dim() and isinstance(given.get("dim"), int):  # cumsum
        return _groups(data, data.shape[given["dim"]])
    return _groups(data, data.numel() // max(1, out.numel()))


def _pooling(given: Arguments, out: Tensor) -> OperatorSizes:
    data = next(tensors_of(given))
    channels = data.shape[1] if data.dim() > 2 else 0
    spatial = tuple(data.shape[2:]) if data.dim() > 2 else tuple(data.shape[-1:])
    kernel = _numbers(given.get("kernel_size", ()))
    if not kernel:  # adaptive: windows follow from the sizes
        target = tuple(out.shape[2:]) if out.dim() > 2 else tuple(out.shape[-1:])
        kernel = tuple(-(-n // max(1, m)) for n, m in zip(spatial, target, strict=True))
    stride = _numbers(given.get("stride", ())) or kernel
    taps = math.prod(kernel) if len(kernel) > 1 else kernel[0] ** len(spatial)
    return OperatorSizes(
        reduction_size=taps,
        reduction_count=out.numel(),
        **window_sizes(spatial, (channels, channels), kernel, stride),
    )


def _resize(given: Arguments, out: Tensor) -> OperatorSizes:
    data = next(tensors_of(given))
    # Of torch's kernels, only those for nearest neighbours and with antialiasing have a thread for every element; the
    # others (`upsample_bilinear2d_out_frame`, ...) have one for every position of the output.
    interpolates = "output_size" in given and "align_corners" in given
    return OperatorSizes(steps=data.shape[0] * data.shape[1] if interpolates else 0, **_image(data))


def _loss(given: Arguments, out: Tensor) -> OperatorSizes:
    data = next(tensors_of(given))
    return _groups(data, data.shape[1] if data.dim() > 1 else data.numel())


def _groups(data: Tensor, size: int) -> OperatorSizes:
    return OperatorSizes(reduction_size=size, reduction_count=data.numel() // max(1, size))


def _image(data: Tensor) -> dict[str, int]:
    """Channels and spatial size of (samples, channels[, depth[, height]], width); empty for other shapes."""
    if not 3 <= data.dim() <= 5:
        return {"input_channels": data.shape[1], "output_channels": data.shape[1]} if data.dim() == 2 else {}
    depth, height, width = (1,) * (5 - data.dim()) + tuple(data.shape[2:])
    return {
        "input_channels": data.shape[1],
        "output_channels": data.shape[1],
        "input_depth": depth,
        "input_height": height,
        "input_width": width,
    }


def _numbers(value: int | Sequence[int]) -> tuple[int, ...]:
    return (int(value),) if isinstance(value, int) else tuple(int(n) for n in value or ())


_RULES: dict[str, Callable[[Arguments, Tensor], OperatorSizes]] = {
    "convolution": _convolution,
    "depthwise_convolution": _convolution,
    "transposed_convolution": _transposed_convolution,
    "linear": _matmul,
    "matmul": _matmul,
    "attention": _attention,
    "recurrent": _recurrent,
    "embedding": _embedding,
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "softmax": _softmax,
    "reduction": _reduction,
    "pooling": _pooling,
    "resize": _resize,
    "loss": _loss,
}
