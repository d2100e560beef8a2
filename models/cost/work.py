"""Arithmetic, traffic and kernels of every operator on a device, at the rates of its data sheet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from profiling.devices import DeviceSpec
from profiling.operators import CONTRACTIONS, DTYPES, KINDS

Floats = NDArray[np.float64]
Columns = Mapping[str, Floats]

IS_CONTRACTION = np.array([kind in CONTRACTIONS for kind in KINDS])
_RECURRENT = KINDS.index("recurrent")
# Largest tile of a matrix product that one multiprocessor computes; libraries choose up to this size (CUTLASS's default).
_TILE = 128.0
# Types whose peak is not that of FP32, as `DeviceSpec.peak_flops` names them.
_TYPES = {
    "float16": "fp16",
    "bfloat16": "bf16",
    "float64": "fp64",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}


@dataclass(frozen=True, slots=True, eq=False)
class OperatorWork:
    """N operators of one graph on one device, each for **one** execution; forward [0] and backward [1] apart.

    Attributes:
        compute_s: [2, N] FLOPs at the peak rate of the operator's type.
        traffic_bytes: [2, N] device-memory traffic.
        block_s: [2, N] one tile of the product on one multiprocessor: what the last wave wastes at most.
        kernels: [2, N].
        repeat: [N] equal executions.
    """

    compute_s: Floats
    traffic_bytes: Floats
    block_s: Floats
    kernels: Floats
    repeat: Floats


def work_of(
    columns: Columns, device: DeviceSpec, precision: str, sm_share_ratio: float = 1.0
) -> OperatorWork:
    """Work of a graph's operators (`ComputationGraph.columns`).

    Args:
        precision: of the job; it decides whether FP32 products run as TF32.
        sm_share_ratio: share of the multiprocessors that the job may use.

    Raises:
        InputError: the device lacks the precision.
    """
    device.check_precision(precision)
    rate = _peak_flops(columns, device, precision) * sm_share_ratio
    flops = np.stack([columns["forward_flops"], columns["backward_flops"]])
    traffic = np.stack([columns["bytes_read"] + columns["bytes_written"], columns["backward_bytes"]])
    rows, width, depth = columns["gemm_m"], columns["gemm_n"], columns["gemm_k"]
    tile_rows, tile_width = np.minimum(rows, _TILE), np.minimum(width, _TILE)
    multiprocessors = max(device.sm_count * sm_share_ratio, 1.0)
    # The gradient of the weights contracts over the rows; libraries split that where it is long.
    gradient = tile_width * np.minimum(depth, _TILE) * np.minimum(rows, 4096.0)
    block = 2.0 * multiprocessors * np.stack([tile_rows * tile_width * depth, gradient]) / rate
    forward_kernels = columns["forward_kernel_count"]
    kernels = np.stack([forward_kernels, np.maximum(columns["kernel_count"] - forward_kernels, 0.0)])
    is_run = (flops + traffic) > 0
    return OperatorWork(flops / rate, traffic, block * is_run, kernels * is_run, columns["repeat"])


def _peak_flops(columns: Columns, device: DeviceSpec, precision: str) -> Floats:
    """[N] FLOP/s: products at the rate of their result's type, the rest at that of what they read."""
    is_contraction = IS_CONTRACTION[columns["kind"].astype(int)]
    output, source = columns["dtype"].astype(int), columns["input_dtype"].astype(int)
    types = np.where(is_contraction | (source < 0), output, source)
    plain = "tf32" if precision == "tf32" else "fp32"
    rate = np.where(is_contraction, device.peak_flops(plain, True), device.fp32_flops)
    for dtype, name in _TYPES.items():
        of_type = types == DTYPES.index(dtype)
        if of_type.any():
            # A graph may hold types that the job's precision does not name; what the device lacks runs as FP32.
            kind = name if device.supports(name) else "fp32"
            peak = np.where(is_contraction, device.peak_flops(kind, True), device.peak_flops(kind, False))
            rate = np.where(of_type, peak, rate)
    return rate


def memory_s(work: OperatorWork, device: DeviceSpec, cached_share: float) -> Floats:
    """[2, N] seconds of an operator's traffic at full bandwidth; what fits into the last-level cache costs `cached_share` of it.

    Never falls when traffic grows.
    """
    cached = np.minimum(work.traffic_bytes, device.l2_bytes)
    return (work.traffic_bytes - (1.0 - cached_share) * cached) / device.memory_bandwidth_bytes_per_s


def floor_s(work: OperatorWork, device: DeviceSpec) -> Floats:
    """[2, N] least time by the data sheet: arithmetic at the peak, or traffic beyond the last-level cache at full bandwidth."""
    return np.maximum(work.compute_s, memory_s(work, device, 0.0))
