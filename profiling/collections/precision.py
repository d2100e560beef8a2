"""Precisions that were not recorded, derived by rule from a recording in FP32.

A pure half-precision (or double) run differs from one in FP32 only in the width of floating-point tensors;
operators, shapes and work are the same. TF32 differs only in the units that multiply.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from profiling.collections.affine import NUMBERS, PEAKS, Trait
from profiling.operators import CONTRACTIONS

Floats = NDArray[np.float64]

DTYPE_OF = {"fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}
RATIOS = {"fp16": 0.5, "bf16": 0.5, "fp64": 2.0}
RECORDED = {
    "fp32": "fp32",
    "tf32": "fp32",
    "fp16": "fp32",
    "bf16": "fp32",
    "fp64": "fp32",
    "amp": "amp",
    "fp8": "amp",
}
"""Which recording serves a precision."""
_MULTIPLE = {"fp16": 8, "bf16": 8, "tf32": 4}
_COLUMN = {name: i for i, name in enumerate(NUMBERS)}


def convert(values: Floats, traits: tuple[Trait, ...], precision: str) -> tuple[Floats, tuple[Trait, ...]]:
    """Numbers [N, len(NUMBERS)] and traits of an FP32 graph, converted to another precision.

    What an operator writes besides its first output (statistics, indices, masks) keeps its width; the rest
    scales.
    """
    if precision not in RATIOS and precision != "tf32":
        return values, traits
    cores = tensor_cores(values, traits, _MULTIPLE.get(precision, 0))
    if precision == "tf32":
        return values, tuple((*t[:4], bool(c), *t[5:]) for t, c in zip(traits, cores, strict=True))
    ratio, dtype = RATIOS[precision], DTYPE_OF[precision]
    values = values.copy()
    first, last = _COLUMN["output_0"], _COLUMN["output_5"] + 1
    elements = np.where(values[:, first:last] > 0, values[:, first:last], 1.0).prod(axis=1)
    is_float = np.array([t[1] == "float32" for t in traits])
    written, read = values[:, _COLUMN["bytes_written"]], values[:, _COLUMN["bytes_read"]]
    # Nodes that absorb a copy of their result write it more than once.
    copies = np.maximum(np.floor(written / np.maximum(4.0 * elements, 1.0)), 1.0)
    narrowed = np.where(is_float, (1 - ratio) * np.minimum(written, 4.0 * elements * copies), 0.0)
    share = np.where(written > 0, 1 - narrowed / np.maximum(written, 1.0), ratio)
    takes_floats = np.array([t[2] in ("float32", "") or t[3] == "float32" for t in traits])
    values[:, _COLUMN["bytes_written"]] = written - narrowed
    values[:, _COLUMN["bytes_read"]] = np.where(takes_floats, ratio * read, read)
    values[:, _COLUMN["parameter_bytes"]] *= ratio
    values[:, _COLUMN["saved_activation_bytes"]] *= share
    values[:, _COLUMN["backward_bytes"]] *= np.where(is_float, np.maximum(share, ratio), 1.0)
    changed = tuple(
        (t[0], _typed(t[1], dtype), _typed(t[2], dtype), _typed(t[3], dtype), bool(core), *t[5:])
        for t, core in zip(traits, cores, strict=True)
    )
    return values, changed


def tensor_cores(values: Floats, traits: tuple[Trait, ...], multiple: int) -> NDArray[np.bool_]:
    """[N] whether contracted and output dimensions are multiples of `multiple`; never if it is 0."""
    if not multiple:
        return np.zeros(len(traits), dtype=bool)

    def fits(name: str) -> NDArray[np.bool_]:
        return values[:, _COLUMN[name]] % multiple == 0

    kinds = np.array([t[0] for t in traits])
    groups = np.maximum(values[:, _COLUMN["groups"]], 1)
    windows = fits("output_channels") & (values[:, _COLUMN["input_channels"]] / groups % multiple == 0)
    products = fits("gemm_k") & fits("gemm_n")
    rules = {
        "convolution": windows,
        "transposed_convolution": windows,
        "attention": fits("head_width"),
        "recurrent": fits("gemm_k"),
        "linear": products,
        "matmul": products,
    }
    on_tensor_cores = np.zeros(len(traits), dtype=bool)
    for kind, rule in rules.items():
        assert kind in CONTRACTIONS
        on_tensor_cores |= (kinds == kind) & rule & (values[:, _COLUMN["gemm_k"]] > 0)
    return on_tensor_cores


def peak_ratios(before: Floats, after: Floats) -> dict[str, float]:
    """Ratios by which the peaks of live memory change with the tensors: of saved, and of written bytes."""
    ratios = {}
    for peak, column in zip(PEAKS, ("saved_activation_bytes", "bytes_written"), strict=True):
        total = before[:, _COLUMN[column]].sum()
        ratios[peak] = float(after[:, _COLUMN[column]].sum() / total) if total else 1.0
    return ratios


def _typed(dtype: str, wanted: str) -> str:
    return wanted if dtype == "float32" else dtype
