"""Converts a captured graph to another precision by rule, for use without the model.

Operators, shapes and FLOPs stay the same; the widths of floating-point tensors change, and with them traffic and memory.
Of the casts that autocast adds or removes, only the copies of weights are modelled, and only their memory. Capturing
again is exact.
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
    step, forward = _peaks(graph, changed)
    # [N] whether the shapes suit tensor cores in the new types.
    cores = tensor_cores(numbers_of(changed), traits_of(changed), _MULTIPLE.get(precision, 0)).tolist()
    return replace(
        changed,
        operators=tuple(replace(op, tensor_core=bool(c)) for op, c in zip(operators, cores, strict=True)),
        activation_bytes=step,
        forward_activation_bytes=forward,
    )


def _peaks(graph: ComputationGraph, changed: ComputationGraph) -> tuple[float, float]:
    """Peaks of live activations of a step and of a forward pass alone in another precision.

    They are in proportion to what operators keep and write. Besides these, the copies that autocast makes of weights
    live until the end of the step. A peak may come before the last of them is made, so that of a forward pass without
    them is at least what its largest operator reads and writes.
    """
    saved, written = (
        changed.total(name) / graph.total(name) if graph.total(name) else 1.0
        for name in ("saved_activation_bytes", "bytes_written")
    )
    before, after = _copied_weight_bytes(graph), _copied_weight_bytes(changed)
    if graph.source != "torch":  # made by rule, without copies
        before = 0.0
    read = dict.fromkeys(range(len(changed.operators)), 0.0)
    for edge in changed.edges:
        read[edge.target] += edge.bytes
    most = max(
        (read[k] + op.bytes_written for k, op in enumerate(changed.operators) if not op.training_only),
        default=0.0,
    )
    forward = graph.forward_activation_bytes * written
    forward = min(max(forward - before * written, most), forward) + after
    step = max((graph.activation_bytes - before) * saved + after, forward)
    # Of some sources, the forward pass is unknown.
    return step, forward if graph.forward_activation_bytes else 0.0


def _copied_weight_bytes(graph: ComputationGraph) -> float:
    """Copies in half precision that autocast makes of the weights of products; it keeps those of trained ones."""
    if graph.options.get("precision") != UNDER:
        return 0.0
    return sum(
        op.parameter_bytes * op.repeat * _ratio("float32", "float16")
        for op in graph.operators
        if op.kind in CONTRACTIONS
        and not 0 <= op.layer_index < graph.frozen_prefix
        and op.layer_index not in graph.frozen_layers
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
