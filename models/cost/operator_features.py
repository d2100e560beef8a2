"""Features that decide an operator's efficiency. None depends on the batch size: so time never falls when the batch grows."""

from __future__ import annotations

import numpy as np

from models.cost.work import Columns, Floats
from profiling.operators import DTYPE_BYTES, DTYPES, KINDS
from profiling.workload import Workload

_BYTES = np.array([DTYPE_BYTES[name] for name in DTYPES], dtype=np.float64)
_LOGS = (
    "input_channels",
    "output_channels",
    "input_height",
    "reduction_size",
    "query_length",
    "key_length",
    "head_width",
    "heads",
    "steps",
    "table_width",
    "table_rows",
)
CONTEXT_FEATURES = ("channels_last", "compiled", "inference", "tensorflow", "processor")
"""Of the job and not of the operator; they stand last but for the kinds."""

OPERATOR_FEATURES = (
    "gemm_n",
    "gemm_k",
    "gemm_groups",
    "gemm_rows_per_sample",
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
    "groups",
    "grouped",
    "depthwise",
    "dilated",
    "input_channels_per_group",
    "output_channels_per_group",
    *(f"log_{name}" for name in _LOGS),
    *(f"{side}_multiple_of_{size}" for size in (4, 8, 32) for side in ("input", "output")),
    "odd_height",
    "keys_multiple_of_8",
    "output_elements_per_sample",
    "input_half",
    "output_half",
    "weight_full",
    "input_double",
    "read_per_written",
    "backward_per_written",
    "backward_per_forward_flops",
    "forward_kernels",
    "kernels",
    "grouped_wide",
    "grouped_wide_channels",
    "depthwise_area",
    "grouped_channels_last",
    "grouped_wide_channels_last",
    "depthwise_channels_last",
    "depthwise_area_channels_last",
    *CONTEXT_FEATURES,
    *(f"is_{kind}" for kind in KINDS),
)


def context_of(workload: Workload, is_processor: bool) -> Floats:
    """[len(CONTEXT_FEATURES)] of a job."""
    return np.array(
        [
            workload.memory_layout == "channels-last",
            workload.compiler == "compile",
            workload.mode == "inference",
            workload.framework == "tensorflow",
            is_processor,
        ],
        dtype=np.float64,
    )


def operator_features(columns: Columns, batch_size: int, context: Floats) -> Floats:
    """[N, len(OPERATOR_FEATURES)], float32.

    Args:
        columns: of the graph, at `batch_size`; what scales with the batch is divided by it.
        context: see `context_of`.
    """
    log = np.log1p
    kind = columns["kind"].astype(int)
    rows, width, depth = columns["gemm_m"], columns["gemm_n"], columns["gemm_k"]
    is_product = (rows * width * depth > 0) * 1.0
    groups, heads = columns["groups"], columns["heads"]
    products = np.where(heads > 0, heads, np.maximum(groups, 1))
    per_sample = (
        is_product * np.maximum(rows, 1) * np.maximum(columns["gemm_batch"], 1) / products / batch_size
    )
    height, breadth = columns["kernel_height"], columns["kernel_width"]
    area = height * breadth * np.maximum(columns["kernel_depth"], 1)
    is_3x3 = (height == 3) & (breadth == 3)
    source, sink = columns["input_channels"], columns["output_channels"]
    grouped = groups > 1
    depthwise = grouped & (groups == source)
    wide = grouped & ~depthwise
    source_each, sink_each = _each(source, groups), _each(sink, groups)
    input_bytes, weight_bytes = _type_bytes(columns["input_dtype"]), _type_bytes(columns["weight_dtype"])
    written = np.maximum(columns["bytes_written"], 1.0)
    channels_last = context[0]
    found = [
        is_product * log(width) / 7,
        is_product * log(depth) / 7,
        is_product * log(products) / 5,
        is_product * log(per_sample) / 8,
        *(is_product * (size % step == 0) for size in (width, depth) for step in (8, 64)),
        columns["tensor_core"],
        log(area) / 3,
        height == 1,
        is_3x3,
        is_3x3 & (columns["stride_height"] == 1),
        height != breadth,
        log(columns["stride_height"]),
        log(groups) / 6,
        grouped,
        depthwise,
        columns["dilation"] > 1,
        log(source_each) / 6,
        log(sink_each) / 6,
        *(log(columns[name]) / 7 for name in _LOGS),
        *((side % size == 0) & (side > 0) for size in (4, 8, 32) for side in (source, sink)),
        columns["input_height"] % 2 == 1,
        (columns["key_length"] % 8 == 0) & (columns["key_length"] > 0),
        log(columns["output_elements"] / batch_size) / 10,
        input_bytes == 2,
        _type_bytes(columns["dtype"]) == 2,
        weight_bytes == 4,
        input_bytes == 8,
        _log_ratio(columns["bytes_read"], written, 3.0),
        _log_ratio(columns["backward_bytes"], written, 4.0),
        np.clip(columns["backward_flops"] / np.maximum(columns["forward_flops"], 1), 0, 4) / 2,
        log(columns["forward_kernel_count"]),
        log(columns["kernel_count"]) / 2,
        wide,
        wide * log(source_each) / 3,
        depthwise * log(area) / 3,
        grouped * channels_last,
        wide * log(source_each) / 3 * channels_last,
        depthwise * channels_last,
        depthwise * log(area) / 3 * channels_last,
        *(np.full(len(kind), value) for value in context),
    ]
    numbers = np.stack([np.asarray(column, dtype=np.float64) for column in found], 1)
    return np.concatenate([numbers, np.eye(len(KINDS))[kind]], 1).astype(np.float32)


def _each(channels: Floats, groups: Floats) -> Floats:
    """Channels of one group; 0 where there are no groups."""
    return np.where(groups > 0, channels / np.maximum(groups, 1), 0.0)


def _type_bytes(codes: Floats) -> Floats:
    """Bytes per element; 0 where the type is not known."""
    return np.where(codes >= 0, _BYTES[np.maximum(codes.astype(int), 0)], 0.0)


def _log_ratio(value: Floats, base: Floats, limit: float) -> Floats:
    return np.clip(np.log(np.maximum(value / base, 1e-3)), -3.0, limit) / 2
