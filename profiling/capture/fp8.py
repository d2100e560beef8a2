"""FP8 training as Transformer Engine runs it, by rule from a step under autocast.

Products of linear layers run in FP8 if both sizes of the weight are multiples of 16; everything else, parameters,
gradients and optimiser state stay as under `amp`, with BF16 for FP16. Whether a layer qualifies does not depend on the
number of rows, which Transformer Engine wants to be a multiple of 8 (`te.Linear` refuses others, so callers pad).

Two kernels are added, which write a tensor in FP8 both as it is and transposed, because FP8 tensor cores multiply in one
layout only: of a layer's input in the forward pass, and of the gradient of its output in the backward pass. The two
copies of a weight take the place of autocast's copy in 16 bits: as many bytes. Saved activations count as under `amp`,
though a layer keeps its input in FP8, because whoever made the tensor may keep it as well.

Sources: `check_dim_for_fp8_exec` of Transformer Engine (pytorch/utils.py: rows multiples of 8, lengths of 16; a layer's
output features are the length of its gradient's product) and `fp8_cast_transpose_fused` in its `Linear`. No run of it was
measured here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from profiling.graph import ComputationGraph, Operator

FP8, UNDER = "fp8", "amp"
"""The precision, and the one from whose graph it follows."""
_TYPE, _OTHERS, _AUTOCAST = "float8_e4m3fn", "bfloat16", "float16"
_MULTIPLE = 16


def in_fp8(graph: ComputationGraph) -> ComputationGraph:
    """The step of a graph in `amp`, in FP8."""
    return _changed(graph, FP8, _to_fp8)


def out_of_fp8(graph: ComputationGraph) -> ComputationGraph:
    """The step of a graph in FP8, in `amp`."""
    return _changed(graph, UNDER, _from_fp8)


def _changed(
    graph: ComputationGraph, precision: str, change: Callable[[Operator], Operator]
) -> ComputationGraph:
    return replace(
        graph,
        operators=tuple(map(change, graph.operators)),
        options={**graph.options, "precision": precision},
    )


def _to_fp8(op: Operator) -> Operator:
    op = _renamed(op, _AUTOCAST, _OTHERS)
    if not _qualifies(op):
        return op
    return replace(_with_casts(op, 1), input_dtype=_TYPE, weight_dtype=_TYPE)


def _from_fp8(op: Operator) -> Operator:
    if op.input_dtype == _TYPE:
        op = replace(_with_casts(op, -1), input_dtype=_AUTOCAST, weight_dtype=_AUTOCAST)
    return _renamed(op, _OTHERS, _AUTOCAST)


def _qualifies(op: Operator) -> bool:
    """Whether the product is in 16 bits, and its layer's input and output features are multiples of 16."""
    sizes = op.sizes
    is_layer = op.kind == "linear" and op.dtype == op.input_dtype == _OTHERS and sizes.gemm_m > 0
    return is_layer and sizes.gemm_k % _MULTIPLE == 0 and sizes.gemm_n % _MULTIPLE == 0


def _with_casts(op: Operator, sign: int) -> Operator:
    """A layer with (1) or without (-1) the casts' kernels and traffic, and with its operands in 8 or in 16 bits.

    With M rows, N output and K input features, the input is read in 16 bits and written twice in 8, then the product
    reads MK + NK bytes less. In the backward pass, the same happens to the gradient (MN), which two products read; they
    read MK + NK bytes less, too. A frozen layer has one of these products, or none.
    """
    sizes = op.sizes
    count = max(sizes.gemm_batch, 1)
    source = count * sizes.gemm_m * sizes.gemm_k
    result = count * sizes.gemm_m * sizes.gemm_n
    weight = count * sizes.gemm_n * sizes.gemm_k
    passes, repeated = (
        flops / op.forward_flops if op.forward_flops else 0.0
        for flops in (op.backward_flops, op.recomputed_flops)
    )
    products = passes - repeated
    cast_bytes = 2.0 * source + source - weight
    kernels = 1.0 + (products > 0) + repeated
    return replace(
        op,
        bytes_read=op.bytes_read + sign * (source - weight),
        bytes_written=op.bytes_written + sign * 2.0 * source,
        backward_bytes=op.backward_bytes
        + sign * (products / 2 * (2.0 * result - source - weight) + repeated * cast_bytes),
        forward_kernel_count=op.forward_kernel_count + sign,
        kernel_count=op.kernel_count + sign * kernels,
        recomputed_kernels=op.recomputed_kernels + sign * repeated,
    )


def _renamed(op: Operator, before: str, after: str) -> Operator:
    dtype, source, weight = (
        after if name == before else name for name in (op.dtype, op.input_dtype, op.weight_dtype)
    )
    return replace(op, dtype=dtype, input_dtype=source, weight_dtype=weight)
