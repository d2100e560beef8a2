"""Operators of a graph that was captured with frozen layers, as if everything were trained."""

from __future__ import annotations

import numpy as np

from models.cost.work import IS_CONTRACTION, Floats
from profiling.graph import ComputationGraph
from profiling.graph_columns import gradient_layers
from profiling.operators import DTYPE_BYTES, KINDS

# Products in the backward pass for one in the forward pass, of kinds without weights.
_PRODUCTS = {"attention": 2.5, "matmul": 2.0}
# Kinds that mostly pass a gradient on as it is.
_PASSING_ON = [KINDS.index(name) for name in ("elementwise", "concat", "copy", "cast")]
# By index into `DTYPES`; an unknown type (-1) reads the last one.
_BYTES = np.array([*DTYPE_BYTES.values(), 0.0])


def whole_columns(graph: ComputationGraph, columns: dict[str, Floats]) -> dict[str, Floats]:
    """Columns of a graph with the FLOPs and kernels of gradients that frozen layers spared, by rule.

    An operator is as efficient with its gradients as without, so features are those of the whole operator, as where
    layers are frozen only when a job is predicted.

    Args:
        columns: of the graph, or with other types.
    """
    if not (graph.frozen_prefix or graph.frozen_layers):
        return columns
    kind = columns["kind"].astype(int)
    is_product = IS_CONTRACTION[kind]
    has = gradient_layers(graph.operators, graph.edges) >= 0
    spared = has & (graph.gradient_layers < graph.frozen_prefix)
    # cuDNN computes the gradient of a recurrent layer's input with that of its weights.
    spared[1] &= (kind != KINDS.index("recurrent")) | spared[0] | ~has[0]
    products = spared.sum(0).astype(np.float64)
    for name, count in _PRODUCTS.items():
        products = np.where(kind == KINDS.index(name), count * spared[1], products)
    # A kernel for each gradient, one for that of a bias, and one for each parameter that was cast.
    weights = columns["gemm_batch"] * columns["gemm_n"] * columns["gemm_k"]
    has_bias = columns["parameter_bytes"] > weights * _BYTES[columns["weight_dtype"].astype(int)]
    kernels = np.ceil(products) + spared[0] * (has_bias + columns["forward_kernel_count"] - 1.0)
    # Of others, one kernel, and one for each cast; the forward pass of a batch norm in training has three.
    casts = np.where(kind == KINDS.index("batch_norm"), 0.0, columns["forward_kernel_count"] - 1.0)
    others = ((spared == has).all(0) & has.any(0) & ~np.isin(kind, _PASSING_ON)) * (1.0 + casts)
    return columns | {
        "backward_flops": columns["backward_flops"] + columns["forward_flops"] * products * is_product,
        "kernel_count": columns["kernel_count"] + np.where(is_product, kernels, others),
    }
