"""Arithmetic, traffic and kernels of every operator on a device, at the rates of its data sheet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.cost.layouts import Columns, Floats, moved_per_byte
from models.cost.occupancy import occupancy_of, warps_of
from profiling.devices import DeviceSpec
from profiling.devices.compute_capability import compute_capabilities
from profiling.operators import CONTRACTIONS, DTYPES, KINDS

IS_CONTRACTION = np.array([kind in CONTRACTIONS for kind in KINDS])
# Largest tile of a matrix product that one multiprocessor computes; libraries use tiles up to this size
# (CUTLASS's default).
_TILE = 128.0
# Rows, columns and depth of a product are padded to multiples of these.
_PAD = (64.0, 64.0, 16.0)
_RESIZE = KINDS.index("resize")
# One access to device memory. EfficientFormerV2's upsampling to 14 x 14 takes 250 to 380 ns per sample and
# channel on four cards of timm's results, whatever their bandwidth.
_ACCESS_S = 3e-7
# FLOPs per clock and multiprocessor of Volta's tensor cores; bytes per clock and multiprocessor from memory.
# GeForce cards have half of either, an A100 twice: the faster a multiprocessor, the harder it is to feed.
_DENSE, _WIDE = 1024.0, 8.0
_CONVOLUTION = KINDS.index("convolution")
# For a 3x3 convolution with stride 1, Winograd's F(2x2, 3x3) takes 16 multiplications where the direct form
# takes 36 (Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016, section 4.1).
_WINOGRAD, _SEEN_WINOGRAD = 36 / 16, ("6.0", "6.1", "7.0", "7.5")
_AMPERE = 8
_WINOGRAD_WINDOW = {
    "kernel_depth": 1,
    "kernel_height": 3,
    "kernel_width": 3,
    "stride_height": 1,
    "stride_width": 1,
    "dilation": 1,
}
# Types with a peak rate other than FP32's, as `DeviceSpec.peak_flops` names them.
_TYPES = {
    "float16": "fp16",
    "bfloat16": "bf16",
    "float64": "fp64",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}
# By index into `DTYPES`; an unknown type (-1) reads the last one, which is none.
IS_FP8 = np.array([_TYPES.get(name) == "fp8" for name in DTYPES])


@dataclass(frozen=True, slots=True, eq=False)
class OperatorWork:
    """N operators of one graph on one device, for **one** execution each; forward [0] and backward [1].

    Attributes:
        compute_s: [2, N] FLOPs at the peak rate of the operator's type; those of the fast form (Winograd) if
            libraries have one.
        traffic_bytes: [2, N] device-memory traffic.
        block_s: [2, N] one tile of the product on one multiprocessor: the most that the last wave wastes.
        kernels: [2, N].
        repeat: [N] number of equal executions.
        density: [N] peak rate of the operator's type per multiprocessor and clock, over `_DENSE`, a measure
            of how hard it is to feed, half of it in FP8; 0 in FP64.
        double_density: [N] the same in FP64, whose kernels spend more on addressing; 0 in other types.
        padding_s: [2, N] arithmetic on padding, at the peak rate.
        serial_s: [2, N] what every thread waits for memory, access after access, unless a compiler has
            written the kernel anew.
        least_s: [2, N] lower bound on the time of the arithmetic: `compute_s`, but the direct form where the
            fast form was never measured.
        occupancy: [N] share of the multiprocessors that are full while the operator runs.
    """

    compute_s: Floats
    traffic_bytes: Floats
    block_s: Floats
    kernels: Floats
    repeat: Floats
    density: Floats
    double_density: Floats
    padding_s: Floats
    serial_s: Floats
    least_s: Floats
    occupancy: Floats


def work_of(
    columns: Columns,
    device: DeviceSpec,
    precision: str,
    sm_share_ratio: float = 1.0,
    channels_last: NDArray[np.bool_] | None = None,
) -> OperatorWork:
    """Work of a graph's operators (`ComputationGraph.columns`).

    Args:
        columns: columns of the graph.
        device: the device.
        precision: precision of the job; determines whether FP32 products run as TF32.
        sm_share_ratio: share of the multiprocessors that the job may use.
        channels_last: [N] operators on images with the channels last; by default none.

    Raises:
        InputError: the device lacks the precision.
    """
    device.check_precision(precision)
    if channels_last is None or device.is_cpu:
        channels_last = np.zeros(len(columns["kind"]), dtype=bool)
    rate = _peak_flops(columns, device, precision) * sm_share_ratio
    flops = np.stack([columns["forward_flops"], columns["backward_flops"]])
    fast = _is_winograd(columns, device) & (precision != "tf32")
    direct, flops = flops, np.where(fast, flops / _WINOGRAD, flops)
    least = flops if device.compute_capability in _SEEN_WINOGRAD else direct
    traffic = np.stack([columns["bytes_read"] + columns["bytes_written"], columns["backward_bytes"]])
    traffic = traffic * moved_per_byte(columns, channels_last)
    rows, width, depth = columns["gemm_m"], columns["gemm_n"], columns["gemm_k"]
    tile_rows, tile_width = np.minimum(rows, _TILE), np.minimum(width, _TILE)
    multiprocessors = max(device.sm_count * sm_share_ratio, 1.0)
    # The gradient of the weights contracts over the rows; libraries split that dimension if it is long.
    gradient = tile_width * np.minimum(depth, _TILE) * np.minimum(rows, 4096.0)
    block = 2.0 * multiprocessors * np.stack([tile_rows * tile_width * depth, gradient]) / rate
    forward_kernels = columns["forward_kernel_count"]
    kernels = np.stack([forward_kernels, np.maximum(columns["kernel_count"] - forward_kernels, 0.0)])
    is_run = (flops + traffic) > 0
    density = rate / (multiprocessors * device.clock_hz) / _DENSE
    # At twice the rate of 16 bits, operands in FP8 ask for as many bytes per clock.
    density = np.where(IS_FP8[columns["input_dtype"].astype(int)], density / 2, density)
    is_double = columns["dtype"] == DTYPES.index("float64")
    return OperatorWork(
        flops / rate,
        traffic,
        block * is_run,
        kernels * is_run,
        columns["repeat"],
        np.where(is_double, 0.0, density),
        np.where(is_double, density, 0.0),
        flops / rate * _padding(columns),
        _serial_s(columns, device),
        least / rate,
        occupancy_of(columns, warps_of(columns, multiprocessors), device, multiprocessors),
    )


def _serial_s(columns: Columns, device: DeviceSpec) -> Floats:
    """[2, N] seconds in which each thread of an interpolating resize goes through samples and channels.

    An output of few positions leaves most of a GPU idle, so it takes these accesses' time and not that of
    the bytes. The backward pass of bilinear interpolation has a thread for every element.
    """
    waits = (columns["kind"].astype(int) == _RESIZE) & (not device.is_cpu)
    forward = columns["steps"] * waits * _ACCESS_S
    return np.stack([forward, np.zeros_like(forward)])


def _padding(columns: Columns) -> Floats:
    """[N] relative excess of a matrix product's tiles over the product, with each side padded to `_PAD`.

    Because rows are padded, adding rows never makes a product cheaper. Grouped products get no padding,
    because libraries have special kernels for them.
    """
    ratio = np.ones(len(columns["kind"]))
    for name, tile in zip(("gemm_m", "gemm_n", "gemm_k"), _PAD, strict=True):
        side = np.maximum(columns[name], 1.0)
        ratio = ratio * np.where(columns[name] > 0, np.ceil(side / tile) * tile / side, 1.0)
    return np.where(columns["groups"] > 1, 0.0, ratio - 1.0)


def _is_winograd(columns: Columns, device: DeviceSpec) -> NDArray[np.bool_]:
    """[N] convolutions that libraries compute in Winograd's form.

    These are dense, 3x3, stride 1 and FP32, on NVIDIA GPUs from Pascal on. On Pascal to Turing, the fastest 1
    % of NeuSight's kernels are 1.3 to 1.7 times faster than the direct form at peak, steps of whole networks
    up to 1.4 times. From Ampere on there are no measurements of it here, so the speed-up is limited to the
    direct form at peak (`least_s`).
    """
    major = device.compute_capability.partition(".")[0]
    if not (device.compute_capability in _SEEN_WINOGRAD or (major.isdigit() and int(major) >= _AMPERE)):
        return np.zeros(len(columns["kind"]), dtype=bool)
    is_single = columns["dtype"].astype(int) == DTYPES.index("float32")
    chosen = (columns["kind"].astype(int) == _CONVOLUTION) & is_single & (columns["groups"] == 1)
    for name, value in _WINOGRAD_WINDOW.items():
        chosen &= columns[name] == value
    return chosen


def _peak_flops(columns: Columns, device: DeviceSpec, precision: str) -> Floats:
    """[N] FLOP/s at the rate of an operator's type: of products the result's, unless they multiply in FP8, and
    of other operators the input's."""
    is_contraction = IS_CONTRACTION[columns["kind"].astype(int)]
    output, source = columns["dtype"].astype(int), columns["input_dtype"].astype(int)
    types = np.where((is_contraction & ~IS_FP8[source]) | (source < 0), output, source)
    plain = "tf32" if precision == "tf32" else "fp32"
    rate = np.where(is_contraction, device.peak_flops(plain, True), device.fp32_flops)
    for dtype, name in _TYPES.items():
        of_type = types == DTYPES.index(dtype)
        if of_type.any():
            # A graph may contain types other than the job's precision; those that the device lacks run as
            # FP32.
            kind = name if device.supports(name) else "fp32"
            peak = np.where(is_contraction, device.peak_flops(kind, True), device.peak_flops(kind, False))
            rate = np.where(of_type, peak, rate)
    return rate


def memory_s(work: OperatorWork, device: DeviceSpec, cached_share: float) -> Floats:
    """[2, N] seconds of an operator's traffic at full bandwidth; non-decreasing in the traffic.

    Traffic that fits into the last-level cache costs `cached_share` of that.
    """
    cached = np.minimum(work.traffic_bytes, device.l2_bytes)
    return (work.traffic_bytes - (1.0 - cached_share) * cached) / device.memory_bandwidth_bytes_per_s


def width_of(device: DeviceSpec) -> float:
    """Memory bandwidth per multiprocessor and clock, over `_WIDE`."""
    return device.memory_bandwidth_bytes_per_s / (max(device.sm_count, 1) * device.clock_hz) / _WIDE


def strain_of(device: DeviceSpec) -> float:
    """How much a board's boost clock overstates its speed under load, as a log; at least 0.

    It is the log ratio of the board's nominal FP32 rate per watt to that of a board of its generation that
    holds its boost clock. Boards of 70 W with the chip of a 250 W board lower their clocks under load, but
    the data sheet gives the boost clock.
    """
    known = compute_capabilities().get(device.compute_capability)
    if known is None or not device.power_limit_w > 0:
        return 0.0
    promised = device.fp32_flops / device.power_limit_w
    return max(0.0, float(np.log(promised / known.fp32_flops_per_w)))


def floor_s(work: OperatorWork, device: DeviceSpec) -> Floats:
    """[2, N] least time by the data sheet.

    The larger of arithmetic at the peak rate and traffic beyond the last-level cache at full bandwidth.
    """
    return np.maximum(work.least_s, memory_s(work, device, 0.0))
