"""Emulates the autocast of a GPU build of torch for tensors on `meta`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.amp import autocast_mode

from profiling.capture.patching import patched

# From https://docs.pytorch.org/docs/stable/amp.html (CUDA) and ATen/autocast_mode.h: names of C functions, and of
# functions that call a listed one (a square is a power, 1 / x a reciprocal), without in-place variants.
TO_HALF = frozenset(
    [
        "matmul",
        "addbmm",
        "addmm",
        "addmv",
        "addr",
        "baddbmm",
        "bmm",
        "chain_matmul",
        "linalg_multi_dot",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_tbc",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "convolution",
        "linear",
        "linalg_vecdot",
        "mm",
        "mv",
        "prelu",
        "scaled_dot_product_attention",
        "lstm",
        "gru",
        "rnn_tanh",
        "rnn_relu",
        "lstm_cell",
        "gru_cell",
        "rnn_tanh_cell",
        "rnn_relu_cell",
        "__matmul__",
        "einsum",
    ]
)
TO_FLOAT = frozenset(
    [
        "acos",
        "asin",
        "binary_cross_entropy_with_logits",
        "cosh",
        "cosine_embedding_loss",
        "cdist",
        "cosine_similarity",
        "cross_entropy_loss",
        "cumprod",
        "cumsum",
        "dist",
        "erfinv",
        "exp",
        "expm1",
        "group_norm",
        "hinge_embedding_loss",
        "kl_div",
        "l1_loss",
        "layer_norm",
        "native_layer_norm",
        "log",
        "log10",
        "log_softmax",
        "log1p",
        "log2",
        "margin_ranking_loss",
        "mse_loss",
        "multilabel_margin_loss",
        "multi_margin_loss",
        "nll_loss",
        "nll_loss_nd",
        "norm",
        "normalize",
        "pdist",
        "poisson_nll_loss",
        "pow",
        "prod",
        "reciprocal",
        "rsqrt",
        "sinh",
        "smooth_l1_loss",
        "soft_margin_loss",
        "softmax",
        "softmin",
        "softplus",
        "sum",
        "renorm",
        "tan",
        "triplet_margin_loss",
        "ctc_loss",
        "huber_loss",
        "square",
        "__rdiv__",
        "__rpow__",
        "__rtruediv__",
        "special_expm1",
        "logsumexp",
        "linalg_norm",
        "linalg_vector_norm",
        "linalg_matrix_norm",
        "frobenius_norm",
        "nuclear_norm",
        "rms_norm",
        "upsample_nearest1d",
        "upsample_nearest2d",
        "upsample_nearest3d",
        "_upsample_nearest_exact1d",
        "_upsample_nearest_exact2d",
        "_upsample_nearest_exact3d",
        "upsample_linear1d",
        "upsample_bilinear2d",
        "_upsample_bilinear2d_aa",
        "upsample_trilinear3d",
        "upsample_bicubic2d",
        "_upsample_bicubic2d_aa",
    ]
)
# Cast to the widest type of their arguments. addcdiv, addcmul, atan2, cross, grid_sampler and index_put do so without
# autocast.
TO_WIDEST = frozenset(["bilinear", "dot", "scatter_add", "tensordot", "vdot"])

# Device whose autocast state stands for the GPU's: every build has it, and it does not cast `meta` tensors.
_STANDS_IN = "cpu"


def lower_type() -> torch.dtype | None:
    """Type to which autocast currently casts products; None outside autocast or if a model disabled it."""
    return torch.get_autocast_dtype(_STANDS_IN) if torch.is_autocast_enabled(_STANDS_IN) else None


@contextmanager
def autocast_regions(dtype: torch.dtype | None) -> Iterator[None]:
    """Run under autocast to `dtype` (None: without autocast), including regions that the model itself opens.

    A model may query autocast, disable it for some operators, or enable it in a job without it, either for `cuda` or
    for the device of its tensors, which is `meta` and has no autocast.
    """
    start = autocast_mode.autocast.__init__

    def begin(
        region: Any,
        device_type: str = "cuda",
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        start(region, _STANDS_IN, dtype or torch.float16, enabled, cache_enabled)

    is_enabled, lower = torch.is_autocast_enabled, torch.get_autocast_dtype
    places = [
        (autocast_mode.autocast, "__init__", begin),
        (torch, "is_autocast_enabled", lambda *_: is_enabled(_STANDS_IN)),
        (torch, "get_autocast_dtype", lambda *_: lower(_STANDS_IN)),
        (torch, "get_autocast_gpu_dtype", lambda: lower(_STANDS_IN)),
    ]
    with patched(places), torch.autocast(_STANDS_IN, dtype, enabled=dtype is not None):
        yield
