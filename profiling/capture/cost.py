"""Kind, FLOPs, bytes and kernels of one dispatched operator, from its shapes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from profiling.capture.fused import attention_flops, recurrent_flops
from profiling.capture.optimizers import TENSORS_PER_KERNEL
from profiling.capture.products import (
    FOURIER,
    Work,
    bilinear_work,
    distance_work,
    fourier_work,
    grouped_work,
    multiplies_points,
    trilinear_work,
)
from profiling.operators import ATEN, CONTRACTIONS
from profiling.training import tensors_of

_GATHERING = frozenset({"embedding", "index", "index_select", "gather", "_unsafe_index", "take_along_dim"})
_BAGS = frozenset({"embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"})
_ADDING = frozenset({"scatter_add_", "scatter_reduce_", "index_add_", "index_reduce_"})
_SCATTERING = _ADDING | {"scatter_", "index_copy_", "index_fill_", "index_put_", "_index_put_impl_"}
# Position of `groups` among the arguments.
_GROUPS = {"convolution": 8, "conv1d": 6, "conv2d": 6, "conv3d": 6}
_WRITE_ONLY = frozenset({"fill", "dropout"})
# One operator on lists of tensors, as in moving averages of weights.
_LISTS = "_foreach_"


@dataclass
class Cost:
    """The work of one dispatched operator; bytes are device-memory traffic."""

    name: str
    kind: str
    known: bool
    flops: float = 0.0
    read: float = 0.0
    written: float = 0.0
    kernels: float = 1.0
    tensor_core: bool = False
    outputs: list[Tensor] = field(default_factory=list)


def tensor_bytes(tensor: Tensor) -> float:
    """Bytes moved by one pass over the tensor; an expanded tensor counts as its storage."""
    return float(min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()))


def packet_name(func: Any) -> str:
    """Name of an operator without overload: `add` for `aten.add.Tensor`; other libraries keep their namespace."""
    namespace, _, name = func._schema.name.partition("::")
    return name if namespace in ("aten", "cotenant") else f"{namespace}::{name}"


def results_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> list[Tensor]:
    """Tensors that `func(*args, **kwargs) == out` returns, or else those that it changes in place."""
    results = list(tensors_of(out))
    if results or not func._schema.is_mutable:
        return results
    changed = [a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    given = {**dict(zip((a.name for a in func._schema.arguments), args, strict=False)), **kwargs}
    return list(tensors_of([given[name] for name in changed if name in given]))


def selects(name: str, args: tuple[Any, ...]) -> bool:
    """Whether the size of the result depends on values that are unknown; then every element is selected."""
    masks = args[0] if name == "nonzero" else args[1] if name == "index" else ()
    return any(t.is_meta and (name == "nonzero" or t.dtype == torch.bool) for t in tensors_of(masks))


def cost_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, tf32: bool) -> Cost:
    """Cost of `func(*args, **kwargs) == out`.

    An unknown operator keeps its name, moves the bytes of its tensors, and counts as one FLOP per output element, so
    that it is never free.

    Args:
        func: dispatched operator.
        out: its result.
        tf32: whether tensor cores may execute FP32 products.
    """
    name = packet_name(func)
    if name == "cdist":  # which `torch.export` does not decompose
        name = "_euclidean_dist" if multiplies_points(*args) else "_cdist_forward"
    inputs = list(tensors_of((args, kwargs)))
    outputs = results_of(func, args, kwargs, out)
    kind = _kind(name, args)
    single = name.removeprefix(_LISTS)
    known = single in ATEN or single.rstrip("_") in ATEN or "_backward" in name
    cost = Cost(name, kind, known, outputs=outputs)
    cost.written = sum(map(tensor_bytes, outputs))
    distinct = {(t.untyped_storage()._cdata, t.storage_offset(), t.shape): t for t in inputs}
    if name in _GATHERING:
        cost.read = cost.written + sum(tensor_bytes(t) for t in inputs if not t.is_floating_point())
    elif name in _BAGS:
        # One row of the table for each index, which the kernel sums.
        table, indices = args[0], args[1]
        rows = float(indices.numel() * table.shape[-1] * table.element_size())
        cost.read = rows + sum(tensor_bytes(t) for t in inputs if t is not table)
    elif name == "embedding_renorm_":
        # In place, only rows that an index names.
        table, indices = args[0], args[1]
        cost.written = float(indices.numel() * table.shape[-1] * table.element_size())
        cost.read = cost.written + tensor_bytes(indices)
    elif name in _SCATTERING:
        # In place, only elements that an index names.
        cost.written = float(_named_elements(name, args) * args[0].element_size())
        cost.read = sum(tensor_bytes(t) for t in inputs if t is not args[0])
        if name in _ADDING or any(given is True for given in (*args[3:4], kwargs.get("accumulate"))):
            cost.read += cost.written
    elif kind not in _WRITE_ONLY or kind == "dropout":
        cost.read = sum(map(tensor_bytes, distinct.values()))
    cost.flops = _flops(func, name, args, kwargs, out)
    if not known and not cost.flops:
        cost.flops = float(sum(t.numel() for t in outputs))
    cost.kernels = _kernels(name, args)
    work = _work(name, args, outputs)
    if work is not None:
        cost.flops, cost.read, cost.written, cost.kernels = work.flops, work.read, work.written, work.kernels
    if kind in CONTRACTIONS:
        cost.tensor_core = _tensor_core(name, args, inputs, tf32)
    return cost


def _kind(name: str, args: tuple[Any, ...]) -> str:
    if name == "convolution" and args[6]:
        return "transposed_convolution"
    if name in _GROUPS:
        weight, groups = args[1], args[_GROUPS[name]] if len(args) > _GROUPS[name] else 1
        return "depthwise_convolution" if groups > 1 and weight.shape[1] == 1 else "convolution"
    single = name.removeprefix(_LISTS)
    return ATEN.get(single) or ATEN.get(single.rstrip("_")) or name


def _flops(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> float:
    times = products_per_element((args, kwargs))
    if name == "attention":
        return attention_flops(args[0].shape, args[1].shape, args[2].shape)[0] * _share(args, 4)
    if name == "attention_backward":
        return attention_flops(args[1].shape, args[2].shape, args[3].shape)[1] * _share(args, 7)
    if name == "recurrent":
        return float(recurrent_flops(args[0].shape[:-1].numel(), [w.shape for w in args[2]]))
    if name == "recurrent_backward":
        return float(recurrent_flops(args[1].shape[:-1].numel(), [w.shape for w in args[2]], args[5]))
    if name == "convolution_backward":
        # torch's formula ignores groups: it counts each group's weights as if applied to all channels.
        grad, _, weight, transposed, mask = args[0], args[1], args[2], args[7], args[10]
        positions = (args[1] if transposed else grad).shape
        forward = 2.0 * positions[0] * positions[2:].numel() * weight.numel()
        return times * forward * (bool(mask[0]) + bool(mask[1]))
    if name == "linalg_solve_triangular":
        # Half of the matrix is zero.
        return times * float(out.numel() * args[0].shape[-1])
    formula = flop_registry.get(func._overloadpacket)
    return times * float(formula(*args, **kwargs, out_val=out)) if formula is not None else 0.0


def products_per_element(values: Any) -> float:
    """Multiply-adds of real numbers for each of a product's: four if its factors are complex."""
    return 4.0 if any(t.is_complex() for t in tensors_of(values)) else 1.0


def _work(name: str, args: tuple[Any, ...], outputs: list[Tensor]) -> Work | None:
    """Work of an operator that torch runs as several kernels; None for all others."""
    if name == "_trilinear":
        return trilinear_work(args, outputs[0])
    if name == "bilinear":
        return bilinear_work(args[0], args[1], args[2], outputs[0])
    if name == "_grouped_mm":
        return grouped_work(args[0], args[1], outputs[0])
    if name == "_euclidean_dist":
        return distance_work(args[0], args[1], outputs[0])
    if name in FOURIER:
        return fourier_work(args[0], args[1], outputs[0])
    if name.startswith("fft_") and ATEN.get(name) == "elementwise":
        return fourier_work(args[0], _transformed(name, args), outputs[0])
    return None


def _transformed(name: str, args: tuple[Any, ...]) -> tuple[int, ...]:
    """Dimensions of a `torch.fft` function that `torch.export` does not decompose: input, lengths, dimensions, norm."""
    given = args[2] if len(args) > 2 else None
    if given is None:
        given = tuple(range(args[0].dim())) if name.endswith("n") else (-2, -1) if name.endswith("2") else -1
    return (given,) if isinstance(given, int) else tuple(given)


def _named_elements(name: str, args: tuple[Any, ...]) -> int:
    """Elements that an operator of `_SCATTERING` writes; an index by mask is assumed to name all."""
    target, where = args[:2]
    if name.startswith("scatter"):
        return int(args[2].numel())
    if isinstance(where, int):
        indices = {where: args[2]}
    else:
        indices = {d: index for d, index in enumerate(where) if index is not None}
    if any(not index.dtype.is_signed for index in indices.values()):
        return int(target.numel())
    rest = math.prod(
        size for d, size in enumerate(target.shape) if d not in indices and d - target.dim() not in indices
    )
    return rest * torch.broadcast_shapes(*(index.shape for index in indices.values())).numel()


def _share(args: tuple[Any, ...], position: int) -> float:
    """Share of the scores that attention computes; all unless it is stated."""
    return float(args[position]) if len(args) > position else 1.0


def _kernels(name: str, args: tuple[Any, ...]) -> float:
    if name == "convolution_backward":
        return float(sum(map(bool, args[-1])))
    if name == "attention_backward":
        return 3.0
    if name.startswith(_LISTS):
        return float(-(-len(args[0]) // TENSORS_PER_KERNEL))
    if name == "recurrent":
        layers, directions = args[4], 2 if args[5] else 1
        batch = args[1][0].shape[-2]
        steps = max(1, args[0].shape[:-1].numel() // max(1, batch))
        # As in cuDNN: per layer, one product over all positions, then a small product and a pointwise kernel per step.
        return float(layers * directions * (1 + 2 * steps))
    if name == "recurrent_backward":
        return float(sum(n for n, w in zip(args[5], args[2], strict=True) if w.dim() == 2))
    return 1.0


def _tensor_core(name: str, args: tuple[Any, ...], inputs: list[Tensor], tf32: bool) -> bool:
    """Whether the contracted and output dimensions are multiples of 16 bytes, as tensor cores require."""
    floating = [t for t in inputs if t.is_floating_point()]
    if not floating:
        return False
    dtype = floating[0].dtype
    if dtype in (torch.float16, torch.bfloat16):
        multiple = 8
    elif dtype == torch.float32 and tf32:
        multiple = 4
    else:
        return False
    if name == "convolution":
        weight, groups = args[1], args[8]
        if groups > 1 and weight.shape[1] == 1:
            return False
        return weight.shape[0] % multiple == 0 and weight.shape[1] % multiple == 0
    if name == "attention":
        return bool(args[0].shape[-1] % multiple == 0)
    if name == "recurrent":
        return bool(args[1][0].shape[-1] % multiple == 0)
    matrices = [t for t in floating if t.dim() >= 2][-2:]
    return len(matrices) == 2 and all(
        n % multiple == 0 for n in (*matrices[0].shape[-1:], *matrices[1].shape[-2:])
    )
