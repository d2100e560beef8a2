"""`ComputationGraph`: what one training step of a model does, without its weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profiling.errors import InputError
from profiling.files import read_json, write_whole
from profiling.graph_values import check_layers, check_scalars, check_shapes, check_values
from profiling.operator_sizes import NO_SIZES, RECOMPUTED_COLUMNS, SIZE_COLUMNS, OperatorSizes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

GRAPH_FORMAT = "cotenant-graph"
GRAPH_VERSION = 2
READABLE_VERSIONS = (1, 2)


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of the forward graph, with the cost of its forward and backward for the whole batch.

    All counts are for **one** execution; `repeat` gives the number of equal executions that this node
    represents.

    Attributes:
        name: unique within the graph.
        kind: canonical kind (see `profiling.operators`); an unknown operator keeps its own name.
        forward_flops, backward_flops: floating-point operations (a multiply-add counts 2).
        bytes_read, bytes_written: device-memory traffic of the forward pass.
        backward_bytes: device-memory traffic of the backward pass.
        parameter_bytes: bytes of its own parameters (0 if another operator holds them).
        saved_activation_bytes: bytes kept from forward to backward.
        output_shape: shape of its (first) output, batch included.
        dtype: type of the output: `float32`, `float16`, `bfloat16`, ...
        input_dtype, weight_dtype: types of the first input that is not a parameter, and of the parameter;
            empty if unknown.
        module_path: dotted path of the module it ran in; empty at the top.
        layer_index: atomic layer in module order, the unit of freezing; -1 if it belongs to none.
        kernel_count: estimated GPU kernels, forward and backward together.
        forward_kernel_count: those of the forward pass.
        recomputed_flops, recomputed_kernels: part of `backward_flops` and `kernel_count`: the forward pass of a
            checkpointed block, which runs again.
        tensor_core: whether its shape and type can run on tensor cores.
        repeat: folded count of equal executions.
        training_only: whether inference omits it: dropout, and the loss.
        sizes: dimensions that determine its speed.
    """

    name: str
    kind: str
    forward_flops: float = 0.0
    backward_flops: float = 0.0
    bytes_read: float = 0.0
    bytes_written: float = 0.0
    backward_bytes: float = 0.0
    parameter_bytes: float = 0.0
    saved_activation_bytes: float = 0.0
    output_shape: tuple[int, ...] = ()
    dtype: str = "float32"
    input_dtype: str = ""
    weight_dtype: str = ""
    module_path: str = ""
    layer_index: int = -1
    kernel_count: float = 1.0
    forward_kernel_count: float = 1.0
    recomputed_flops: float = 0.0
    recomputed_kernels: float = 0.0
    tensor_core: bool = False
    repeat: int = 1
    training_only: bool = False
    sizes: OperatorSizes = NO_SIZES


@dataclass(frozen=True, slots=True)
class TensorEdge:
    """A tensor made by `source` and used by `target` (indices into `operators`), and its size in bytes."""

    source: int
    target: int
    bytes: float


@dataclass(frozen=True)
class ComputationGraph:
    """Operators and the tensors between them, for one batch size and set of training options.

    Attributes:
        name: the user's name for the model.
        operators: in execution order of the forward pass.
        edges: tensors between operators.
        layers: names of the atomic layers in module order, to which `Operator.layer_index` refers.
        batch_size: samples per forward/backward pass.
        parameter_count: elements of all distinct parameters.
        parameter_bytes, gradient_bytes, optimizer_state_bytes: device bytes held through the whole step;
            gradients and state are those of unfrozen parameters only.
        optimizer_flops, optimizer_bytes, optimizer_kernels: cost of one optimiser step.
        activation_bytes: peak live activations of a step.
        forward_activation_bytes: peak live activations of a forward pass alone, with nothing kept for a
            backward pass; 0 if the source does not state it.
        host_input_bytes: bytes that a step copies from host to device.
        options: precision, optimizer, frozen_prefix, sequence_length, ... as captured.
        source: `torch`, `export`, `onnx` or `pipedream`.
    """

    name: str
    operators: tuple[Operator, ...]
    edges: tuple[TensorEdge, ...] = ()
    layers: tuple[str, ...] = ()
    batch_size: int = 1
    parameter_count: int = 0
    parameter_bytes: float = 0.0
    gradient_bytes: float = 0.0
    optimizer_state_bytes: float = 0.0
    optimizer_flops: float = 0.0
    optimizer_bytes: float = 0.0
    optimizer_kernels: float = 0.0
    activation_bytes: float = 0.0
    forward_activation_bytes: float = 0.0
    host_input_bytes: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)
    source: str = "torch"

    def __post_init__(self) -> None:
        count = len(self.operators)
        for edge in self.edges:
            if not (0 <= edge.source < count and 0 <= edge.target < count):
                raise InputError(
                    f"graph {self.name!r} has an edge to an unknown operator",
                    expected=f"indices 0 to {count - 1}",
                    got=f"{edge.source} -> {edge.target}",
                )

    def total(self, column: str) -> float:
        """Sum of a numeric operator column over all executions (folded repeats counted)."""
        return float(sum(getattr(op, column) * op.repeat for op in self.operators))

    @cached_property
    def columns(self) -> dict[str, NDArray[np.float64]]:
        """Operators as NumPy columns, see `profiling.graph_columns`."""
        from profiling.graph_columns import columns_of

        return columns_of(self.operators)

    @property
    def frozen_prefix(self) -> int:
        """Number of leading atomic layers that were frozen at the capture, whose gradients it lacks."""
        return int(self.options.get("frozen_prefix") or 0)

    @property
    def frozen_layers(self) -> frozenset[int]:
        """Atomic layers behind the frozen prefix whose parameters the model itself does not train."""
        return frozenset(self.options.get("frozen_layers") or ())

    @property
    def passes(self) -> int:
        """Forward/backward passes per optimiser step."""
        return int(self.options.get("gradient_accumulation") or 1)

    @property
    def step_samples(self) -> int:
        """Samples per optimiser step."""
        return self.batch_size * self.passes

    @cached_property
    def gradient_layers(self) -> NDArray[np.int64]:
        """Operators that a frozen prefix leaves without gradients; see `graph_columns.gradient_layers`."""
        from profiling.graph_columns import gradient_layers

        return gradient_layers(self.operators, self.edges, self.frozen_layers)

    @cached_property
    def forward_flops(self) -> float:
        return self.total("forward_flops")

    @cached_property
    def backward_flops(self) -> float:
        return self.total("backward_flops")

    @cached_property
    def step_bytes(self) -> float:
        """Device-memory traffic of a whole step, optimiser included."""
        return (
            self.total("bytes_read")
            + self.total("bytes_written")
            + self.total("backward_bytes")
            + self.optimizer_bytes
        )

    @cached_property
    def step_flops(self) -> float:
        return self.forward_flops + self.backward_flops + self.optimizer_flops

    @cached_property
    def kernel_count(self) -> float:
        return self.total("kernel_count") + self.optimizer_kernels

    @cached_property
    def arithmetic_intensity(self) -> float:
        """FLOPs per byte of device-memory traffic over a step."""
        return self.step_flops / self.step_bytes if self.step_bytes else 0.0

    @cached_property
    def tensor_core_ratio(self) -> float:
        """Share of FLOPs with shapes and types that tensor cores can run."""
        flops = [(op.forward_flops + op.backward_flops) * op.repeat for op in self.operators]
        total = sum(flops)
        return (
            sum(f for f, op in zip(flops, self.operators, strict=True) if op.tensor_core) / total
            if total
            else 0.0
        )

    @property
    def state_bytes(self) -> float:
        """Parameters, gradients of unfrozen ones and optimiser state: a training process's minimum."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_state_bytes

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 over everything but the display name; equal graphs have equal hashes in every process."""
        body = self.to_dict()
        del body["name"]
        return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def summary(self) -> dict[str, Any]:
        """The totals of most interest to users."""
        kinds: dict[str, int] = {}
        for op in self.operators:
            kinds[op.kind] = kinds.get(op.kind, 0) + op.repeat
        return {
            "name": self.name,
            "hash": self.content_hash,
            "source": self.source,
            "batch_size": self.batch_size,
            "operators": sum(op.repeat for op in self.operators),
            "nodes": len(self.operators),
            "edges": len(self.edges),
            "layers": len(self.layers),
            "parameter_count": self.parameter_count,
            "parameter_bytes": self.parameter_bytes,
            "gradient_bytes": self.gradient_bytes,
            "optimizer_state_bytes": self.optimizer_state_bytes,
            "activation_bytes": self.activation_bytes,
            "forward_activation_bytes": self.forward_activation_bytes,
            "forward_flops": self.forward_flops,
            "backward_flops": self.backward_flops,
            "step_bytes": self.step_bytes,
            "kernel_count": self.kernel_count,
            "arithmetic_intensity": self.arithmetic_intensity,
            "tensor_core_ratio": self.tensor_core_ratio,
            "host_input_bytes": self.host_input_bytes,
            "kinds": dict(sorted(kinds.items(), key=lambda item: -item[1])),
            "options": self.options,
        }

    def to_dict(self) -> dict[str, Any]:
        """Column-wise JSON object: small, and quick to read for large graphs.

        Sizes and recomputed work that are all 0 are omitted.
        """
        columns: dict[str, Any] = {
            f.name: [getattr(op, f.name) for op in self.operators] for f in fields(Operator)
        }
        for name in RECOMPUTED_COLUMNS:
            if not any(columns[name]):
                del columns[name]
        columns["output_shape"] = [list(shape) for shape in columns["output_shape"]]
        operator_sizes = columns["sizes"]
        sizes = {name: [getattr(value, name) for value in operator_sizes] for name in SIZE_COLUMNS}
        columns["sizes"] = {name: values for name, values in sizes.items() if any(values)}
        scalars = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name not in ("operators", "edges", "layers")
        }
        return {
            "format": GRAPH_FORMAT,
            "version": GRAPH_VERSION,
            **scalars,
            "options": dict(self.options),
            "layers": list(self.layers),
            "operators": columns,
            "edges": [[e.source, e.target, e.bytes] for e in self.edges],
        }

    @classmethod
    def from_dict(cls, body: Any) -> ComputationGraph:
        """Read what `to_dict` wrote.

        Raises:
            InputError: not such an object, another version, columns of unequal length, invalid values, or an
                edge to a missing operator.
        """
        if not isinstance(body, dict) or body.get("format") != GRAPH_FORMAT:
            raise InputError(
                "not a computation graph",
                expected=f"an object with format {GRAPH_FORMAT!r}",
                got=type(body).__name__,
            )
        version = body.get("version")
        if version not in READABLE_VERSIONS:
            raise InputError(
                "graph has an unsupported version",
                expected=" or ".join(map(str, READABLE_VERSIONS)),
                got=version,
            )
        try:
            operators = _read_operators(dict(body["operators"]), version)
            check_values("edges", "float", [size for _, _, size in body["edges"]])
            check_values("edges", "int", [end for *ends, _ in body["edges"] for end in ends])
            edges = tuple(TensorEdge(int(s), int(t), float(b)) for s, t, b in body["edges"])
            known = {f.name for f in fields(cls)} - {"operators", "edges", "layers"}
            if version == 1:
                known -= {"forward_activation_bytes"}
            scalars = {key: body[key] for key in known}
            check_scalars(scalars, fields(cls))
            check_values("layers", "str", body["layers"])
            check_layers([op.layer_index for op in operators], body["layers"])
            return cls(operators=operators, edges=edges, layers=tuple(body["layers"]), **scalars)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(
                "computation graph is damaged", expected="all columns, of equal length", got=repr(error)
            ) from None

    def save(self, path: Path | str) -> Path:
        """Write the graph as one line of JSON.

        Indenting 100,000 operators would take ten times as long.
        """
        return write_whole(path, json.dumps(self.to_dict(), separators=(",", ":"), allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: Path | str) -> ComputationGraph:
        return cls.from_dict(read_json(path))


def _read_operators(columns: dict[str, Any], version: int) -> tuple[Operator, ...]:
    """Operators from their columns.

    Version 1 lacks sizes, input types, and the forward pass's own figures.
    """
    columns["output_shape"] = [tuple(int(n) for n in shape) for shape in columns["output_shape"]]
    check_shapes(columns["output_shape"])
    count = len(columns["name"])
    if version == 1:
        columns["input_dtype"] = columns["weight_dtype"] = [""] * count
        # A backward pass launches about two kernels for each of the forward pass.
        columns["forward_kernel_count"] = [kernels / 3 for kernels in columns["kernel_count"]]
        columns["training_only"] = [kind in ("dropout", "loss") for kind in columns["kind"]]
    columns = dict.fromkeys(RECOMPUTED_COLUMNS, [0.0] * count) | columns
    columns["sizes"] = _read_sizes({} if version == 1 else dict(columns["sizes"]), count)
    for f in fields(Operator):
        check_values(f.name, str(f.type), columns[f.name])
    names = [f.name for f in fields(Operator)]
    return tuple(
        Operator(**dict(zip(names, row, strict=True)))
        for row in zip(*(columns[name] for name in names), strict=True)
    )


def _read_sizes(columns: dict[str, list[int]], count: int) -> list[OperatorSizes]:
    names = list(columns)
    if not names:
        return [NO_SIZES] * count
    for name, values in columns.items():
        check_values(name, "int", values)
    return [
        OperatorSizes(**dict(zip(names, row, strict=True))) for row in zip(*columns.values(), strict=True)
    ]


def operator_names(places: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Distinct names of operators, given the module path and kind of each: `path.kind`, `path.kind#1`, ..."""
    seen: dict[str, int] = {}
    names = []
    for path, kind in places:
        name = f"{path}.{kind}" if path else kind
        count = seen.get(name, 0)
        seen[name] = count + 1
        names.append(f"{name}#{count}" if count else name)
    return tuple(names)
