"""FLOPs and bytes of the rows of the `operators` table."""

from __future__ import annotations

import numpy as np
import pandas as pd

from datasets.bundle import Floats
from models.baselines.rooflines import ELEMENT_BYTES, peaks

# FLOPs per element of a normalised row.
_NORMALISING_FLOPS = 5.0

LAUNCH_S = 25e-6
"""In every row of the table: a call timed by itself is a launch, too (Lee et al., "NeuSight", ASPLOS 2025)."""


def operator_work(operators: pd.DataFrame) -> tuple[Floats, Floats]:
    """[n] floating-point operations, and [n] bytes that a forward call must read and write at least."""

    def of(name: str) -> Floats:
        return operators[name].to_numpy(dtype=np.float64, na_value=np.nan)

    kind = operators["kind"].to_numpy(dtype=object)
    size = operators["precision"].map(ELEMENT_BYTES).to_numpy(dtype=np.float64)
    b, m, n, k = (of(name) for name in "bmnk")
    # A linear layer has one weight matrix for the whole batch.
    weights = np.where(kind == "linear", 1.0, b) * k * n
    product = (2 * b * m * n * k, b * m * k + weights + b * m * n)
    inputs, outputs, kernel, side = (
        of(name) for name in ("input_channels", "output_channels", "kernel_size", "input_size")
    )
    out = np.floor((side + 2 * of("padding") - kernel) / of("stride")) + 1
    filters = inputs * outputs * kernel**2
    convolution = (2 * b * filters * out**2, b * inputs * side**2 + b * outputs * out**2 + filters)
    rows = b * n
    each = np.where(np.isin(kind, ("layer_norm", "softmax")), _NORMALISING_FLOPS, 1.0)
    elementwise = (each * rows, (of("operand_count") + 1) * rows)
    is_product, is_convolution = np.isin(kind, ("matmul", "linear")), kind == "convolution"
    flops, elements = (
        np.where(is_product, product[i], np.where(is_convolution, convolution[i], elementwise[i]))
        for i in (0, 1)
    )
    return flops, elements * size


def operator_roofline_s(operators: pd.DataFrame) -> Floats:
    """[n] seconds by the device's data sheet, without launch; NaN for a device outside the catalogue."""
    flops, moved = operator_work(operators)
    peak, bandwidth = peaks(operators)
    seconds: Floats = np.maximum(flops / peak, moved / bandwidth)
    return seconds
