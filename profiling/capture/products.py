"""FLOPs, traffic and kernels of operators that torch runs as several kernels: bilinear layers, Fourier transforms,
products by groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Longest transform that is taken to be one kernel, by the 64 KiB that it needs of shared memory; not measured.
_LONGEST_FFT = 8192
# Up to as many points, `cdist` subtracts every pair (`cdist_impl` in torch's Distance.cpp).
_FEW_POINTS = 25
FOURIER = frozenset({"_fft_r2c", "_fft_c2r", "_fft_c2c"})
"""Transforms of real to complex numbers, back, and between complex numbers; their second argument is the dimensions."""


@dataclass(frozen=True)
class Work:
    """FLOPs, bytes of device-memory traffic, and kernels."""

    flops: float
    read: float
    written: float
    kernels: float


def trilinear_work(args: Sequence[Any], out: Tensor) -> Work:
    """Of `_trilinear`, which computes bilinear layers and their gradients.

    For each index of one dimension (of the outputs of a layer), torch multiplies the first two factors, summing over
    dimensions that the third lacks, then multiplies by the third and adds the result up, as torch's profiler shows. A
    product that sums nothing is elementwise and has no FLOPs.

    Args:
        args: three factors, for each the dimensions of the product that it lacks, dimensions to sum, and which
            dimension is unrolled (1 unless given).
    """
    factors, missing, summed = args[:3], [set(dims) for dims in args[3:6]], set(args[6])
    unrolled = args[7] if len(args) > 7 else 1
    rank = len(missing[0]) + factors[0].dim()
    sizes = [1] * rank
    shapes = []
    for factor, absent in zip(factors, missing, strict=True):
        present = [d for d in range(rank) if d not in absent]
        shapes.append(dict(zip(present, factor.shape, strict=True)))
        for d in present:
            sizes[d] = max(sizes[d], shapes[-1][d])
    first = set(shapes[0]) | set(shapes[1])
    # The unrolled dimension is summed by the additions.
    kept = first - (summed & missing[2] - {unrolled})
    second = kept | set(shapes[2])

    def count(dims: set[int]) -> float:
        return float(math.prod(sizes[d] for d in dims))

    # Dimensions of each product, and whether it sums any.
    products = ((first, kept < first), (second, bool(second & summed - {unrolled})))
    times = sizes[unrolled]
    between = count(kept | {unrolled})
    parts = count((second - summed) | {unrolled})
    # A factor without the unrolled dimension is read again for each index.
    operands = sum(f.numel() * (1 if unrolled in s else times) for f, s in zip(factors, shapes, strict=True))
    size = out.element_size()
    return Work(
        flops=2.0 * sum(count(dims | {unrolled}) for dims, sums in products if sums),
        read=size * (operands + between + 2 * parts),
        written=size * (between + 2 * parts + out.numel()),
        kernels=3.0 * times + 1.0,
    )


def bilinear_work(left: Tensor, right: Tensor, weight: Tensor, out: Tensor) -> Work:
    """Of `bilinear`, which multiplies (rows, I), (rows, J) and (O, I, J); see `trilinear_work`."""
    rows = (left.flatten(0, -2), weight, right.flatten(0, -2))
    return trilinear_work((*rows, (1, 3), (0,), (1, 2), (2, 3)), out)


def distance_work(left: Tensor, right: Tensor, out: Tensor) -> Work:
    """Of `_euclidean_dist`, by which `cdist` measures the distances of more than `_FEW_POINTS` points.

    torch multiplies (-2 x, |x|^2, 1) by (y, 1, |y|^2), in place of subtracting every pair.
    """
    first, second, pairs = (float(t.numel() * t.element_size()) for t in (left, right, out))
    return Work(
        flops=2.0 * out.numel() * (left.shape[-1] + 2),
        read=5 * first + 4 * second + 2 * pairs,
        written=3 * first + 2 * second + 3 * pairs,
        kernels=12.0,
    )


def multiplies_points(left: Tensor, right: Tensor, power: float = 2.0, mode: int | None = None) -> bool:
    """Whether `cdist` of these arguments is `_euclidean_dist`."""
    many = left.shape[-2] > _FEW_POINTS or right.shape[-2] > _FEW_POINTS
    return power == 2 and (many if not mode else mode == 1)


def fourier_work(source: Tensor, dims: Sequence[int], out: Tensor) -> Work:
    """Of a Fourier transform: 5 N log2(N) FLOPs per transform of N complex numbers, half of that of N real ones.

    That is how cuFFT and FFTW count them. Each dimension is a pass over memory, a long one several.
    """
    # Transforms over several dimensions without halving a side start with a conversion to complex numbers.
    has_real = not (source.is_complex() and out.is_complex())
    is_real = has_real and (len(dims) == 1 or source.shape != out.shape)
    whole = max(
        source, out, key=lambda t: t.numel()
    )  # a real side has all elements, a complex one half of them
    lengths = [whole.shape[d] for d in dims]
    passes = sum(max(1, math.ceil(math.log(max(n, 2), _LONGEST_FFT))) for n in lengths)
    flops = 5.0 * whole.numel() * math.log2(max(math.prod(lengths), 1)) * (0.5 if is_real else 1.0)
    bytes_in, bytes_out = (float(t.numel() * t.element_size()) for t in (source, out))
    # Between passes, the tensor is complex; `hfft` of real numbers has none at either end.
    of_complex = (t.numel() * t.element_size() for t in (source, out) if t.is_complex())
    complex_bytes = max(of_complex, default=2 * bytes_in)
    between = (passes - 1) * complex_bytes
    return Work(flops, bytes_in + between, bytes_out + between, float(passes))


def grouped_work(left: Tensor, right: Tensor, out: Tensor) -> Work:
    """Of `_grouped_mm`, which multiplies the rows of each group (of an expert's tokens) by a matrix of its own.

    In BF16 that is one kernel. In other types, torch multiplies one group after another (`GroupedMMUtils.h`).
    """
    # Two matrices share the dimension that is divided into groups.
    of_groups = left.dim() == right.dim() == 2
    groups = out.shape[0] if of_groups else max(left.shape[:-2].numel(), right.shape[:-2].numel())
    read, written = (
        float(sum(t.numel() * t.element_size() for t in some)) for some in ((left, right), (out,))
    )
    return Work(
        flops=2.0 * out.numel() * left.shape[-1] / (groups if of_groups else 1),
        read=read,
        written=written,
        kernels=1.0 if left.dtype == torch.bfloat16 else float(groups),
    )
