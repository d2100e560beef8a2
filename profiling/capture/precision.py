"""Converts a captured graph to another precision by rule, for use without the model.

Operators, shapes and FLOPs stay the same; the widths of floating-point tensors change, and with them traffic and memory.
Casts that autocast adds or removes are not modelled. Capturing again is exact.
"""

from __future__ import annotations

from dataclasses import replace

from profiling.capture.fp8 import FP8, UNDER, in_fp8, out_of_fp8
from profiling.capture.options import check_options
from profiling.collections.affine import numbers_of, traits_of
from profiling.collections.precision import tensor_cores
from profiling.graph import ComputationGraph, Operator
from profiling.operators import CONTRACTIONS, DTYPE_BYTES
from profiling.workload import Workload

HALVED_BY_AMP = CONTRACTIONS | {
    "elementwise",
    "activation",
    "dropout",
    "concat",
    "copy",
    "pooling",
    "batch_norm",
}
"""Kinds whose results are in half precision under autocast."""
_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
_WHOLE = {"fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}
_MULTIPLE = {"fp16": 8, "bf16": 8, "amp": 8, "tf32": 4}


def with_precision(graph: ComputationGraph, precision: str) -> ComputationGraph:
    """The same step in another precision; the graph itself if it already has that precision, or states none."""
    before = graph.options.get("precision")
    if before in (None, precision):
        return graph
    if before == FP8:
        return with_precision(out_of_fp8(graph), precision)
    if precision == FP8:
        return in_fp8(with_precision(graph, UNDER))
    parameter_type = _WHOLE.get(precision, "float32")
    held = _ratio(_WHOLE.get(str(before), "float32"), parameter_type)
    operators = tuple(_retyped(op, precision, held) for op in graph.operators)
    changed = replace(
        graph,
        operators=operators,
        edges=tuple(
            replace(e, bytes=e.bytes * _ratio(graph.operators[e.source].dtype, operators[e.source].dtype))
            for e in graph.edges
        ),
        parameter_bytes=graph.parameter_bytes * held,
        gradient_bytes=graph.gradient_bytes * held,
        optimizer_state_bytes=graph.optimizer_state_bytes * held,
        optimizer_bytes=graph.optimizer_bytes * held,
        options={**graph.options, "precision": precision},
    )
    saved, written = (
        changed.total(name) / graph.total(name) if graph.total(name) else 1.0
        for name in ("saved_activation_bytes", "bytes_written")
    )
    # [N] whether the shapes suit tensor cores in the new types.
    cores = tensor_cores(numbers_of(changed), traits_of(changed), _MULTIPLE.get(precision, 0)).tolist()
    return replace(
        changed,
        operators=tuple(replace(op, tensor_core=bool(c)) for op, c in zip(operators, cores, strict=True)),
        activation_bytes=graph.activation_bytes * saved,
        forward_activation_bytes=graph.forward_activation_bytes * written,
    )


def for_job(graph: ComputationGraph, workload: Workload) -> ComputationGraph:
    """The graph for a job of it: in the job's precision, unless that is the default, which is the graph's own.

    Raises:
        InputError: the job states another option than the graph was captured with, see `check_options`.
    """
    check_options(workload, graph)
    unstated = Workload(workload.model).precision
    return graph if workload.precision == unstated else with_precision(graph, workload.precision)


def _retyped(op: Operator, precision: str, held: float) -> Operator:
    is_half = precision == "amp" and op.kind in HALVED_BY_AMP
    wanted = "float16" if is_half else _WHOLE.get(precision, "float32")
    dtype, source = (wanted if name in _FLOATS else name for name in (op.dtype, op.input_dtype))
    weight = _WHOLE.get(precision, "float32") if op.weight_dtype in _FLOATS else op.weight_dtype
    out, into = _ratio(op.dtype, dtype), _ratio(op.input_dtype or op.dtype, source or dtype)
    return replace(
        op,
        bytes_read=op.bytes_read * into,
        bytes_written=op.bytes_written * out,
        backward_bytes=op.backward_bytes * out,
        parameter_bytes=op.parameter_bytes * held,
        saved_activation_bytes=op.saved_activation_bytes * out,
        dtype=dtype,
        input_dtype=source,
        weight_dtype=weight,
    )


def _ratio(before: str, after: str) -> float:
    return DTYPE_BYTES.get(after, 4) / DTYPE_BYTES.get(before, 4)
