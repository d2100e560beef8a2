"""Features that determine an operator's efficiency.

None depends on the batch size, so that time never falls as the batch grows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from models.cost.layouts import by_channel, type_bytes
from models.cost.work import IS_FP8, Columns, Floats
from profiling.operators import KINDS
from profiling.workload import Workload

_LOGS = (
    "input_channels",
    "output_channels",
    "input_height",
    "input_width",
    "query_length",
    "key_length",
    "head_width",
    "heads",
    "steps",
    "table_width",
    "table_rows",
)
# Channels per group for which cuDNN has special kernels for grouped convolutions (3x3, as many output as
# input channels).
_SPECIALISED = (4, 8, 16, 32)
# Window areas for which depthwise convolutions have special kernels; others run a generic one.
_DEPTHWISE_AREAS = (9, 25)
# Kinds that take at most 0.5 % of any measured step, but up to 60 % of others (the loss of a language model).
# Fitted to those steps, they would be fitted to noise, so they are taken for passes over memory, as they are.
_AS_ELEMENTWISE = [KINDS.index(name) for name in ("embedding", "cast", "sort", "loss", "fill", "other")]
# Kinds that never reduce over samples, so the size of their reductions does not depend on the batch.
_REDUCE_WITHIN_SAMPLES = [KINDS.index(name) for name in ("layer_norm", "group_norm", "softmax", "pooling")]
CONTEXT_FEATURES = ("channels_last", "compiled", "inference", "tensorflow", "processor")
"""Of the job and not of the operator; they stand last but for the kinds."""

OPERATOR_FEATURES = (
    "gemm_n",
    "gemm_k",
    "gemm_groups",
    "gemm_n_multiple_of_8",
    "gemm_n_multiple_of_64",
    "gemm_k_multiple_of_8",
    "gemm_k_multiple_of_64",
    "tensor_core",
    "window_area",
    "window_height_1",
    "window_3x3",
    "window_3x3_stride_1",
    "window_not_square",
    "stride",
    "log_groups",
    "depthwise",
    "dilated",
    "input_channels_per_group",
    "output_channels_per_group",
    *(f"log_{name}" for name in _LOGS),
    *(f"{side}_multiple_of_{size}" for size in (4, 8, 32) for side in ("input", "output")),
    "odd_height",
    "keys_multiple_of_8",
    "log_reduction_size",
    "input_half",
    "output_half",
    "weight_full",
    "input_double",
    "backward_per_forward_flops",
    "forward_kernels",
    "kernels",
    "grouped",
    "grouped_channels",
    "grouped_specialised",
    "depthwise_area",
    "depthwise_generic_area",
    "grouped_channels_last",
    "grouped_channels_channels_last",
    "grouped_specialised_channels_last",
    "depthwise_channels_last",
    "depthwise_area_channels_last",
    "depthwise_generic_channels_last",
    *CONTEXT_FEATURES,
    *(f"is_{kind}" for kind in KINDS),
)


def fused(kind: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[N] operators that a compiler speeds up, by `fitted_kind`; recurrent layers stay calls of a library."""
    return kind != KINDS.index("recurrent")


def context_of(workload: Workload, is_cpu: bool) -> Floats:
    """[len(CONTEXT_FEATURES)] of a job."""
    return np.array(
        [
            workload.memory_layout == "channels-last",
            workload.compiler == "compile",
            workload.mode == "inference",
            workload.framework == "tensorflow",
            is_cpu,
        ],
        dtype=np.float64,
    )


def fitted_kind(columns: Columns) -> NDArray[np.int64]:
    """[N] index into `KINDS` of the kind whose efficiency each operator has."""
    kind = columns["kind"].astype(np.int64)
    return np.where(np.isin(kind, _AS_ELEMENTWISE), KINDS.index("elementwise"), kind)


def operator_features(
    columns: Columns, context: Floats, channels_last: NDArray[np.bool_] | None = None
) -> Floats:
    """[N, len(OPERATOR_FEATURES)] float32 features; the same at every batch size.

    The exception is convolutions with separate weights for every sample.

    Args:
        columns: columns of the graph.
        context: see `context_of`.
        channels_last: [N] operators whose images follow a job's channels-last layout, see `are_channels_last`;
            by default all.
    """
    log = np.log1p
    kind = fitted_kind(columns)
    # A resize goes through all samples one after another.
    columns = {**columns, "steps": np.where(kind == KINDS.index("resize"), 0.0, columns["steps"])}
    columns = {**columns, "groups": np.where(by_channel(columns), 0.0, columns["groups"])}
    rows, width, depth = columns["gemm_m"], columns["gemm_n"], columns["gemm_k"]
    is_product = (rows * width * depth > 0) * 1.0
    groups, heads = columns["groups"], columns["heads"]
    products = np.where(heads > 0, heads, np.maximum(groups, 1))
    height, breadth = columns["kernel_height"], columns["kernel_width"]
    area = height * breadth * np.maximum(columns["kernel_depth"], 1)
    is_3x3 = (height == 3) & (breadth == 3)
    source, sink = columns["input_channels"], columns["output_channels"]
    depthwise = (groups > 1) & (groups == source)
    log_groups = np.log(np.maximum(groups, 1)) / 6
    # Scaled by the number of groups, because two groups are closer to a dense convolution than to 32 groups.
    grouped = log_groups * ~depthwise
    source_each, sink_each = _each(source, groups), _each(sink, groups)
    specialised = (grouped > 0) & is_3x3 & (source_each == sink_each) & np.isin(source_each, _SPECIALISED)
    generic = depthwise & ~np.isin(area, _DEPTHWISE_AREAS)
    log_area = np.log(np.maximum(area, 1)) / 3
    input_bytes, weight_bytes = type_bytes(columns["input_dtype"]), type_bytes(columns["weight_dtype"])
    last = context[0] * (np.ones(len(kind)) if channels_last is None else channels_last)
    features = [
        is_product * log(width) / 7,
        is_product * log(depth) / 7,
        is_product * log(products) / 5,
        *(is_product * (size % step == 0) for size in (width, depth) for step in (8, 64)),
        columns["tensor_core"],
        log(area) / 3,
        height == 1,
        is_3x3,
        is_3x3 & (columns["stride_height"] == 1),
        height != breadth,
        log(columns["stride_height"]),
        log_groups,
        depthwise,
        columns["dilation"] > 1,
        log(source_each) / 6,
        log(sink_each) / 6,
        *(log(columns[name]) / 7 for name in _LOGS),
        *((side % size == 0) & (side > 0) for size in (4, 8, 32) for side in (source, sink)),
        columns["input_height"] % 2 == 1,
        (columns["key_length"] % 8 == 0) & (columns["key_length"] > 0),
        np.isin(kind, _REDUCE_WITHIN_SAMPLES) * log(columns["reduction_size"]) / 7,
        # Operands in FP8 count as those in 16 bits, as none were measured.
        (input_bytes == 2) | IS_FP8[columns["input_dtype"].astype(int)],
        type_bytes(columns["dtype"]) == 2,
        weight_bytes == 4,
        input_bytes == 8,
        np.clip(columns["backward_flops"] / np.maximum(columns["forward_flops"], 1), 0, 4) / 2,
        log(columns["forward_kernel_count"]),
        log(columns["kernel_count"]) / 2,
        grouped,
        grouped * log(source_each) / 3,
        specialised,
        depthwise * log_area,
        generic * log_area,
        grouped * last,
        grouped * log(source_each) / 3 * last,
        specialised * last,
        depthwise * last,
        depthwise * log_area * last,
        generic * last,
        last,
        *(
            value * fused(kind) if name == "compiled" else np.full(len(kind), value)
            for name, value in zip(CONTEXT_FEATURES[1:], context[1:], strict=True)
        ),
    ]
    numbers = np.stack([np.asarray(column, dtype=np.float64) for column in features], 1)
    return np.concatenate([numbers, np.eye(len(KINDS))[kind]], 1).astype(np.float32)


def _each(channels: Floats, groups: Floats) -> Floats:
    """Channels per group; 0 without groups."""
    return np.where(groups > 0, channels / np.maximum(groups, 1), 0.0)
