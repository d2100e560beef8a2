"""Derives a training step's graph from a forward graph, adding backward pass and optimiser by rule.

ONNX, `torch.export` and PipeDream provide forward operators. The rules match recorded steps: a product costs as much
again for the gradient of its data, and again for that of its weights; an operator has no backward pass if nothing up to
it is trained, or if the loss does not depend on it; an output is saved if the operator or one that reads it needs it for
its gradient.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace

from profiling.capture.fp8 import FP8, UNDER, in_fp8
from profiling.capture.optimizers import FLOPS, PASSES, STATES, launches
from profiling.capture.options import EXECUTION, frozen_layers, options_of
from profiling.capture.precision import HALVED_BY_AMP
from profiling.errors import InputError
from profiling.graph import ComputationGraph, Operator, TensorEdge
from profiling.operator_sizes import NO_SIZES, OperatorSizes
from profiling.operators import CONTRACTIONS
from profiling.workload import Workload

_KEEPS_INPUT = CONTRACTIONS | {"batch_norm", "layer_norm", "group_norm", "pooling", "loss"}
_KEEPS_OUTPUT = frozenset({"activation", "softmax", "dropout"})


@dataclass
class StaticOperator:
    """A forward operator: `profiling.graph.Operator` without what follows from the rules.

    Attributes:
        flops: of the forward pass.
        read, written: bytes.
        inputs: `(index of the producer, bytes)` of each tensor input that an operator produced.
        parameters: `(name, elements, bytes)` of each parameter that it reads.
        aligned: contracted and output dimensions, for the tensor-core rule; empty if there are none.
        input_dtype, weight_dtype, sizes: as in `profiling.graph.Operator`.
        factors: of a contraction: the producer of each factor, as often as the factor occurs, and the size of the
            product for its gradient, as a share of the forward pass. By default, the inputs with whole products; a
            recurrent layer's gradient of its data takes one, whatever needs it.
        weights: of a contraction: for each factor that is computed from parameters, their names; by default, one
            factor from all of its parameters.
        detached: producers of inputs that pass no gradient back.
        training_only: whether inference leaves it out, apart from what its kind says.
    """

    name: str
    kind: str
    flops: float
    read: float
    written: float
    inputs: list[tuple[int, float]] = field(default_factory=list)
    parameters: list[tuple[str, int, float]] = field(default_factory=list)
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    path: str = ""
    aligned: tuple[int, ...] = ()
    input_dtype: str = ""
    weight_dtype: str = ""
    sizes: OperatorSizes = NO_SIZES
    factors: list[tuple[int, float]] | None = None
    weights: list[list[str]] | None = None
    detached: frozenset[int] = frozenset()
    training_only: bool = False

    def gradient_products(self, needs: Sequence[bool], trained: Container[str]) -> float:
        """Products for the gradients of a contraction that has a backward pass, each as large as the forward pass.

        Args:
            needs: whether the gradient of each operator's output is computed.
            trained: names of trained parameters.
        """
        names = [name for name, _, _ in self.parameters]
        weights = ([names] if names else []) if self.weights is None else self.weights
        of_weights = float(sum(any(name in trained for name in factor) for factor in weights))
        if self.kind == "recurrent" and self.factors is None:
            return 1.0 + of_weights  # cuDNN always computes those of a layer's input and state
        factors = [(j, 1.0) for j, _ in self.inputs] if self.factors is None else self.factors
        return min(sum(share for j, share in factors if needs[j]), 2.0 - len(weights)) + of_weights

    def differentiated(self) -> set[int]:
        """Producers of the inputs that get a gradient if the output has one."""
        return {j for j, _ in self.inputs if j not in self.detached}

    @property
    def kernels(self) -> tuple[float, float]:
        """Kernels of the forward pass, and of each of `gradient_products`."""
        if self.kind != "recurrent" or not self.sizes.steps:
            return 1.0, 1.0
        # As in cuDNN: per layer and direction, one product over all positions, then a small product and a pointwise
        # kernel per step; backward, a product for either weight matrix.
        layers = self.sizes.gemm_batch
        return float(layers * (1 + 2 * self.sizes.steps)), 2.0 * layers

    @property
    def is_differentiable(self) -> bool:
        """Whether its output may have a gradient."""
        return self.dtype.startswith(("float", "bfloat", "complex"))

    @property
    def is_transform(self) -> bool:
        """Whether it is a Fourier transform, the only elementwise operator with FLOPs, which its backward pass repeats."""
        return self.kind == "elementwise" and self.flops > 0


def assemble(
    name: str,
    operators: Sequence[StaticOperator],
    *,
    batch_size: int,
    input_bytes: float,
    workload: Workload,
    source: str,
    layers: Sequence[str] | None = None,
    frozen: Container[str] = (),
    read: Container[int] | None = None,
    unread: Sequence[tuple[int, float]] = (),
) -> ComputationGraph:
    """The graph of a training step, from its forward operators in execution order.

    Args:
        input_bytes: bytes that a forward pass gets from the host.
        workload: training options; activation checkpointing requires the module itself.
        source: `source` of the graph.
        layers: names of the atomic layers; by default, modules with parameters, in order of first use.
        frozen: names of parameters that the module itself does not train.
        read: operators whose results are the loss, or what it reads; any by default.
        unread: elements and bytes of each parameter that no operator reads, but the device holds.

    Raises:
        InputError: `frozen_prefix` is out of range, or activation checkpointing is requested.
    """
    is_fp8 = workload.precision == FP8
    if is_fp8:
        workload = replace(workload, precision=UNDER)
    if workload.activation_checkpointing:
        raise InputError(
            f"a graph from {source} has no activation checkpointing",
            hint="capture the torch module, or drop the option",
        )
    names, layer_of = _layers(operators, layers)
    if workload.frozen_prefix > len(names):
        raise InputError(
            "frozen_prefix is out of range",
            expected=f"0 to {len(names)} atomic layers",
            got=workload.frozen_prefix,
        )
    sizes = _parameters(operators, workload.precision)
    trained = {p for p in sizes if layer_of[p] >= workload.frozen_prefix and p not in frozen}
    layers_trained = {layer_of[p] for p in trained}
    needs = _needs(operators, trained, read)
    trained &= {p for op, needed in zip(operators, needs, strict=True) if needed for p, _, _ in op.parameters}
    built = _operators(operators, layer_of, trained, needs, workload)
    saved_bytes = sum(op.saved_activation_bytes for op in built)
    optimizer = workload.optimizer or "sgd"
    elements = sum(sizes[p][0] for p in trained)
    trained_bytes = float(sum(sizes[p][1] for p in trained))
    accumulation_bytes = (workload.gradient_accumulation - 1) * 3 * trained_bytes
    held = [*sizes.values(), *((count, _held(count, size, workload.precision)) for count, size in unread)]
    graph = ComputationGraph(
        name=name,
        operators=built,
        edges=_edges(operators, workload.precision),
        layers=tuple(names),
        batch_size=batch_size,
        parameter_count=sum(count for count, _ in held),
        parameter_bytes=float(sum(size for _, size in held)),
        gradient_bytes=trained_bytes,
        optimizer_state_bytes=STATES[optimizer] * trained_bytes,
        optimizer_flops=float(FLOPS[optimizer] * elements),
        optimizer_bytes=PASSES[optimizer] * trained_bytes + accumulation_bytes,
        optimizer_kernels=launches(optimizer, len(trained)),
        activation_bytes=input_bytes + saved_bytes + 2 * max((op.bytes_written for op in built), default=0.0),
        forward_activation_bytes=input_bytes + _forward_peak(operators, workload.precision),
        host_input_bytes=workload.gradient_accumulation * input_bytes,
        options={
            "precision": workload.precision,
            "optimizer": optimizer,
            "frozen_prefix": workload.frozen_prefix,
            "gradient_accumulation": workload.gradient_accumulation,
            "activation_checkpointing": False,
            **{name: value for name, value in options_of(workload).items() if name in EXECUTION},
            **frozen_layers(
                [layer in layers_trained for layer in range(len(names))],
                {"frozen_prefix": workload.frozen_prefix},
            ),
        },
        source=source,
    )
    return in_fp8(graph) if is_fp8 else graph


def _parameters(operators: Sequence[StaticOperator], precision: str) -> dict[str, tuple[int, float]]:
    """Elements of every parameter and bytes in `precision`, in order of first use."""
    sizes: dict[str, tuple[int, float]] = {}
    for op in operators:
        for parameter, elements, size in op.parameters:
            sizes.setdefault(parameter, (elements, _held(elements, size, precision)))
    return sizes


def _layers(
    operators: Sequence[StaticOperator], known: Sequence[str] | None
) -> tuple[list[str], dict[str, int]]:
    names = list(known or [])
    position = {layer: i for i, layer in enumerate(names)}
    layer_of: dict[str, int] = {}
    for op in operators:
        for parameter, _, _ in op.parameters:
            if parameter in layer_of:
                continue
            module = parameter.rpartition(".")[0]
            layer = module if module in position or known is None else op.path
            if not layer and layer not in position:  # the module itself may be a layer, with an empty path
                layer = op.name
            if layer not in position:
                position[layer] = len(names)
                names.append(layer)
            layer_of[parameter] = position[layer]
    return names, layer_of


def _needs(
    operators: Sequence[StaticOperator], trained: Container[str], read: Container[int] | None
) -> list[bool]:
    """Whether the gradient of each operator's output is computed: something up to it is trained, and the loss reads it."""
    needs = [False] * len(operators)
    for i, op in enumerate(operators):
        own = any(p in trained for p, _, _ in op.parameters)
        needs[i] = op.is_differentiable and (own or any(needs[j] for j in op.differentiated()))
    if read is not None:
        reached = {i for i in range(len(operators)) if i in read}
        for i in reversed(range(len(operators))):
            needs[i] = needs[i] and i in reached
            if needs[i]:
                reached |= operators[i].differentiated()
    return needs


def _layer_indices(operators: Sequence[StaticOperator], layer_of: dict[str, int]) -> list[int]:
    """Layer of each operator: that of its parameters, or else that of its inputs; -1 before the first."""
    found: list[int] = []
    for op in operators:
        own = max((layer_of[p] for p, _, _ in op.parameters), default=-1)
        found.append(own if own >= 0 else max((found[j] for j, _ in op.inputs), default=-1))
    return found


def _kept(operators: Sequence[StaticOperator], needs: Sequence[bool]) -> set[int]:
    """Operators whose outputs are saved for a gradient."""
    kept: set[int] = set()
    for i, op in enumerate(operators):
        if needs[i] and op.kind in _KEEPS_OUTPUT:
            kept.add(i)
        if needs[i] and op.kind in _KEEPS_INPUT:
            kept.update(j for j, _ in op.inputs)
    return kept


def _operators(
    operators: Sequence[StaticOperator],
    layer_of: dict[str, int],
    trained: set[str],
    needs: Sequence[bool],
    workload: Workload,
) -> tuple[Operator, ...]:
    precision, kept = workload.precision, _kept(operators, needs)
    built: list[Operator] = []
    seen: set[str] = set()
    counted: set[str] = set()
    for i, (op, layer) in enumerate(zip(operators, _layer_indices(operators, layer_of), strict=True)):
        scale, dtype = _scale(op, precision)
        is_product = op.kind in CONTRACTIONS
        parts = op.gradient_products(needs, trained) if is_product and needs[i] else float(needs[i])
        kernels, gradient_kernels = op.kernels
        saved = scale * op.written if i in kept else 0.0
        if op.kind == "dropout" and needs[i]:
            saved += scale * op.written / 4
        title = op.name
        while title in seen:
            title += "'"
        seen.add(title)
        built.append(
            Operator(
                name=title,
                kind=op.kind,
                forward_flops=op.flops,
                backward_flops=op.flops * parts if is_product or op.is_transform else 0.0,
                bytes_read=scale * op.read,
                bytes_written=scale * op.written,
                backward_bytes=scale * (op.read + op.written) * parts,
                parameter_bytes=float(
                    sum(_held(n, size, precision) for p, n, size in op.parameters if p not in counted)
                ),
                saved_activation_bytes=saved,
                output_shape=op.shape,
                dtype=dtype,
                input_dtype=_type(op.input_dtype, op.kind, precision),
                weight_dtype=_type(op.weight_dtype, op.kind, precision),
                module_path=op.path,
                layer_index=layer,
                kernel_count=kernels + gradient_kernels * parts,
                forward_kernel_count=kernels,
                tensor_core=_tensor_core(op, dtype, precision),
                repeat=workload.gradient_accumulation,
                training_only=op.training_only or op.kind in ("dropout", "loss"),
                sizes=op.sizes,
            )
        )
        counted.update(p for p, _, _ in op.parameters)
    return tuple(built)


def _edges(operators: Sequence[StaticOperator], precision: str) -> tuple[TensorEdge, ...]:
    edges: dict[tuple[int, int], float] = {}
    for i, op in enumerate(operators):
        for j, size in op.inputs:
            edges[j, i] = edges.get((j, i), 0.0) + _scale(operators[j], precision)[0] * size
    return tuple(TensorEdge(s, t, size) for (s, t), size in edges.items())


def _held(elements: int, size: float, precision: str) -> float:
    """Bytes of a parameter in `precision`, given those in the forward graph."""
    return 2.0 * elements if precision in ("fp16", "bf16") and size == 4 * elements else size


def _scale(op: StaticOperator, precision: str) -> tuple[float, str]:
    dtype = _type(op.dtype, op.kind, precision)
    return (0.5 if dtype != op.dtype else 1.0), dtype


def _type(dtype: str, kind: str, precision: str) -> str:
    """Type of an operator's tensor in `precision`, given its type in the forward graph."""
    if dtype != "float32":
        return dtype
    if precision in ("fp16", "bf16"):
        return "float16" if precision == "fp16" else "bfloat16"
    return "float16" if precision == "amp" and kind in HALVED_BY_AMP else dtype


def _forward_peak(operators: Sequence[StaticOperator], precision: str) -> float:
    """Peak bytes of live outputs in a forward pass: each lives until the last operator that reads it."""
    last = list(range(len(operators)))
    for i, op in enumerate(operators):
        for j, _ in op.inputs:
            last[j] = max(last[j], i)
    ends: dict[int, list[int]] = {}
    for j, i in enumerate(last):
        ends.setdefault(i, []).append(j)
    written = [_scale(op, precision)[0] * op.written for op in operators]
    live = peak = 0.0
    for i in range(len(operators)):
        live += written[i]
        peak = max(peak, live)
        live -= sum(written[j] for j in ends.get(i, ()))
    return peak


def _tensor_core(op: StaticOperator, dtype: str, precision: str) -> bool:
    multiple = 8 if dtype in ("float16", "bfloat16") else 4 if precision == "tf32" else 0
    return bool(multiple and op.aligned and all(n % multiple == 0 for n in op.aligned))
