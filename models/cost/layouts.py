"""Which operators work on images with the channels last, and what that costs kernels that expect them first."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from profiling.operators import DTYPE_BYTES, DTYPES, KINDS

Floats = NDArray[np.float64]
Columns = Mapping[str, Floats]

_BYTES = np.array([DTYPE_BYTES[name] for name in DTYPES], dtype=np.float64)
# Device memory is read and written in sectors of 32 bytes (NVIDIA, "CUDA C++ Best Practices Guide", "Coalesced
# Access to Global Memory").
_SECTOR_BYTES = 32.0
_CONVOLUTIONS = [KINDS.index(f"{form}convolution") for form in ("", "depthwise_", "transposed_")]
_BY_CHANNEL = [KINDS.index(name) for name in ("batch_norm", "activation")]


def type_bytes(codes: Floats) -> Floats:
    """Bytes per element of types by index into `DTYPES`; 0 for an unknown one."""
    return np.where(codes >= 0, _BYTES[np.maximum(codes.astype(int), 0)], 0.0)


def are_channels_last(columns: Columns, batch_size: int) -> NDArray[np.bool_]:
    """[N] whether an operator's images follow the job's memory layout where that has the channels last.

    A job without convolutions has no images.
    """
    has_images = bool(np.isin(columns["kind"].astype(int), _CONVOLUTIONS).any())
    return ~_is_per_sample(columns, batch_size) & has_images


def _is_per_sample(columns: Columns, batch_size: int) -> NDArray[np.bool_]:
    """[N] whether a convolution has separate weights for every sample (CondConv, Yang et al., NeurIPS 2019).

    Its samples are groups of one large image, which is contiguous whatever the job's memory layout.
    """
    stride = [np.maximum(columns[f"stride_{side}"], 1) for side in ("height", "width")]
    positions = np.ceil(columns["input_height"] / stride[0]) * np.ceil(columns["input_width"] / stride[1])
    groups, rows = columns["groups"], columns["gemm_m"]
    is_one_image = (groups > 1) & (groups % batch_size == 0) & (rows > 0) & (rows <= positions)
    return np.asarray(is_one_image & (columns["parameter_bytes"] == 0) & (batch_size > 1))


def by_channel(columns: Columns) -> NDArray[np.bool_]:
    """[N] operators whose kernels go through one channel at a time: those of in-place ABN."""
    return np.isin(columns["kind"].astype(int), _BY_CHANNEL) & (columns["groups"] > 1)


def moved_per_byte(columns: Columns, channels_last: NDArray[np.bool_]) -> Floats:
    """[N] bytes moved for each byte that an operator uses; at least 1.

    With the channels last, neighbours in a channel are far apart, so a kernel that goes through one channel
    at a time moves a sector for each element.
    """
    element = type_bytes(columns["dtype"])
    strided = by_channel(columns) & channels_last & (element > 0)
    return np.where(strided, _SECTOR_BYTES / np.maximum(element, 1.0), 1.0)
