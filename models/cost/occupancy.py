"""Warps that an operator's kernels launch, and how full they keep a GPU's multiprocessors.

Grids are as cuBLAS and PyTorch choose them: a product in the largest tile that gives every multiprocessor
enough blocks, elementwise kernels with four elements per thread, a normalised row per block (per warp for
short rows of a softmax). No constant is learned.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from models.cost.layouts import Floats
from profiling.devices import DeviceSpec
from profiling.operators import CONTRACTIONS, KINDS

# Rows and columns of a product that a block computes, and its warps; largest first.
_TILES = ((128.0, 128.0, 8.0), (128.0, 64.0, 4.0), (64.0, 64.0, 4.0), (32.0, 32.0, 4.0))
# Blocks per multiprocessor that a grid aims for, and the depth below which a product is not split.
_WAVES, _LEAST_DEPTH = 2.0, 256.0
# Warps of a product that fit on a multiprocessor: two blocks of 256 threads, each with a quarter of the
# registers.
_PRODUCT_WARPS = 16
# Elements per warp: four per thread (`vectorized_elementwise_kernel<4>`).
_ELEMENTS_PER_WARP = 128.0
# Rows up to this width are normalised by a warp (`softmax_warp_forward`), wider ones by a block of this many
# warps.
_WARP_ROW, _SOFTMAX_WARPS, _NORM_WARPS = 1024.0, 8.0, 4.0
_IS_PRODUCT = np.array([kind in CONTRACTIONS for kind in KINDS])
_SOFTMAX, _LAYER_NORM = KINDS.index("softmax"), KINDS.index("layer_norm")


def warps_of(columns: Mapping[str, Floats], multiprocessors: float) -> Floats:
    """[N] warps of an operator's main kernel per execution; its backward kernels launch about as many each.

    Args:
        columns: columns of a graph (`ComputationGraph.columns`).
        multiprocessors: number that the job may use.
    """
    kind = columns["kind"].astype(int)
    warps = np.ceil(columns["output_elements"] / _ELEMENTS_PER_WARP)
    is_product = _IS_PRODUCT[kind] & (columns["gemm_m"] > 0)
    warps = np.where(is_product, _product_warps(columns, multiprocessors), warps)
    rows, wide = columns["reduction_count"], columns["reduction_size"] > _WARP_ROW
    warps = np.where((kind == _SOFTMAX) & (rows > 0), rows * np.where(wide, _SOFTMAX_WARPS, 1.0), warps)
    return np.where((kind == _LAYER_NORM) & (rows > 0), rows * _NORM_WARPS, warps)


def _product_warps(columns: Mapping[str, Floats], multiprocessors: float) -> Floats:
    batch = np.maximum(columns["gemm_batch"], 1.0)
    grids = [
        batch * np.ceil(columns["gemm_m"] / height) * np.ceil(columns["gemm_n"] / width)
        for height, width, _ in _TILES
    ]
    blocks, warps = grids[-1], np.full(len(batch), _TILES[-1][2])
    for grid, (_, _, of_block) in reversed(list(zip(grids, _TILES, strict=True))):
        fills = grid >= _WAVES * multiprocessors
        blocks, warps = np.where(fills, grid, blocks), np.where(fills, of_block, warps)
    # A product with a weight that leaves multiprocessors idle is also split along its depth.
    parts = np.floor(_WAVES * multiprocessors / np.maximum(blocks, 1.0))
    parts = np.where(batch > 1, 1.0, np.clip(parts, 1.0, np.maximum(columns["gemm_k"] / _LEAST_DEPTH, 1.0)))
    return np.asarray(blocks * parts * warps)


def occupancy_of(
    columns: Mapping[str, Floats], warps: Floats, device: DeviceSpec, multiprocessors: float
) -> Floats:
    """[N] share of the multiprocessors that are full while an operator's main kernel runs.

    It is 0 for a device without warps.

    Args:
        columns: columns of a graph.
        warps: [N] launched.
        device: gives the number of warps that fit on a multiprocessor; products keep their results in
            registers, so fewer fit.
        multiprocessors: number that the job may use.
    """
    if not device.max_warps_per_sm:
        return np.zeros_like(warps)
    kind = columns["kind"].astype(int)
    resident = np.where(_IS_PRODUCT[kind], _PRODUCT_WARPS, device.max_warps_per_sm)
    return np.minimum(warps / (resident * multiprocessors), 1.0)
