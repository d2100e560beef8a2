"""Reads forward operators from ONNX files; nothing in them is executed, and weights are not read."""

from __future__ import annotations

import ast
import math
import warnings
from functools import partial
from typing import Any

from profiling.capture.onnx_branches import take_branches
from profiling.capture.onnx_inputs import bind_inputs, described_inputs, drop_weights, input_bytes, item_bytes
from profiling.capture.onnx_limits import OnnxLimits, check_model, graphs_of
from profiling.capture.onnx_sizes import recurrent_shapes, sizes_of
from profiling.capture.onnx_values import complete_shapes
from profiling.capture.static import StaticOperator
from profiling.errors import InputError, LimitError, UnsafeFileError
from profiling.operators import CONTRACTIONS, ONNX, ONNX_VIEWS

_SCOPES = "pkg.torch.onnx.name_scopes"
_RECURRENT = frozenset(["LSTM", "GRU", "RNN"])
# Inputs of these operators that are not trained, but settings or running statistics.
_NOT_TRAINED = {
    "BatchNormalization": {3, 4},
    "Resize": {1, 2, 3},
    "Clip": {1, 2},
    "Pad": {1, 2, 3},
    "Pow": {1},
    "Range": {0, 1, 2},
    "OneHot": {1, 2},
    "Where": {0, 1, 2},
    "ScatterND": {0, 1, 2},
}


def read_operators(
    data: bytes, batch_size: int | None, sequence_length: int | None, limits: OnnxLimits
) -> tuple[list[StaticOperator], int, float]:
    """Parse a model and infer its shapes.

    Args:
        data: the file's bytes.
        batch_size: binds the first dimension of the inputs, see `bind_inputs`.
        sequence_length: binds every other dynamic dimension.

    Returns:
        Forward operators in execution order, the batch size, and bytes of the inputs.

    Raises:
        InputError, LimitError, UnsafeFileError: the file is refused, with the reason.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load_model_from_string(data)
    except (DecodeError, ValueError, RecursionError) as error:
        raise UnsafeFileError("the file is not ONNX, or is nested too deeply", got=str(error)) from None
    check_model(model, limits)
    drop_weights(model.graph)
    if model.functions:
        import onnx.inliner

        model = onnx.inliner.inline_local_functions(model)
        check_model(model, limits)
    if take_branches(model.graph, limits.depth):
        drop_weights(model.graph)
        check_model(model, limits)
    size = bind_inputs(model.graph, batch_size, sequence_length)
    try:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True, strict_mode=True)
    except Exception as error:  # the C++ checker raises several unrelated types
        raise InputError(
            "shapes of the ONNX graph are inconsistent",
            got=str(error).splitlines()[0],
            hint=f"the inputs were read as {described_inputs(model.graph)}",
        ) from None
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    return _Reader(model.graph, limits).run(opset), size, input_bytes(model.graph)


class _Reader:
    """Reads the operators of a graph whose shapes are inferred."""

    def __init__(self, graph: Any, limits: OnnxLimits) -> None:
        import onnx

        self._graph = graph
        self._limits = limits
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._types: dict[str, int] = {}
        for value in (*graph.input, *graph.output, *graph.value_info):
            tensor = value.type.tensor_type
            if tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim):
                self._shapes[value.name] = tuple(d.dim_value for d in tensor.shape.dim)
            self._types[value.name] = tensor.elem_type
        self._parameters: dict[str, list[tuple[str, int, float]]] = {}
        self._constants: set[str] = set()
        for tensor in graph.initializer:
            self._shapes[tensor.name] = tuple(tensor.dims)
            self._types[tensor.name] = tensor.data_type
            floating = (
                onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).kind == "f" or tensor.data_type == 16
            )
            if floating and len(tensor.dims):
                elements = math.prod(tensor.dims)
                size = float(elements * item_bytes(tensor.data_type))
                self._parameters[tensor.name] = [(tensor.name, elements, size)]
            else:
                self._constants.add(tensor.name)
        self._producer: dict[str, int] = {}
        self._operators: list[StaticOperator] = []
        self._unknown: dict[str, int] = {}
        self._shapeless = 0

    def run(self, opset: int) -> list[StaticOperator]:
        """All operators of the graph in topological order."""
        nodes = self._sorted()
        complete_shapes(nodes, self._graph.initializer, opset, self._shapes, self._types)
        for node in nodes:
            self._check_elements(node)
        for node in nodes:
            self._visit(node)
        if self._unknown:
            counts = ", ".join(f"{kind} ({count})" for kind, count in sorted(self._unknown.items()))
            warnings.warn(f"ONNX operators without a canonical kind: {counts}", stacklevel=2)
        if self._shapeless:
            warnings.warn(
                f"{self._shapeless} ONNX operators have outputs of unknown shape; assuming that of their "
                f"first input",
                stacklevel=2,
            )
        return self._operators

    def _sorted(self) -> list[Any]:
        made = {output: i for i, node in enumerate(self._graph.node) for output in node.output if output}
        order: list[Any] = []
        state: dict[int, bool] = {}
        for start in range(len(self._graph.node)):
            stack = [start]
            while stack:
                i = stack[-1]
                if i in state:
                    stack.pop()
                    if not state[i]:
                        state[i] = True
                        order.append(self._graph.node[i])
                    continue
                state[i] = False
                stack += [made[x] for x in self._graph.node[i].input if x in made and made[x] not in state]
        return order

    def _check_elements(self, node: Any) -> None:
        """Refuse a Reshape to another number of elements, as from an exporter that kept a size of its example."""
        if node.op_type != "Reshape" or not {node.input[0], node.output[0]} <= self._shapes.keys():
            return
        before, after = self._shapes[node.input[0]], self._shapes[node.output[0]]
        if math.prod(before) != math.prod(after):
            raise InputError(
                "shapes of the ONNX graph are inconsistent",
                got=f"Reshape {node.name!r} from {before} to {after}",
                hint=f"the inputs were read as {described_inputs(self._graph)}",
            )

    def _visit(self, node: Any) -> None:
        self._check_bodies(node)
        # CastLike takes only the type of its second input.
        inputs = [x for x in node.input[: 1 if node.op_type == "CastLike" else None] if x]
        kind = ONNX.get(node.op_type) if node.domain in ("", "ai.onnx", "com.microsoft") else None
        producers = [self._producer[x] for x in inputs if x in self._producer]
        skipped = _NOT_TRAINED.get(node.op_type, set())
        parameters = {
            p[0]: p for i, x in enumerate(node.input) if i not in skipped for p in self._parameters.get(x, ())
        }
        derived = not producers and all(x in self._constants or x in self._parameters for x in inputs)
        if node.op_type in ("Shape", "Size", "Constant") or (derived and not parameters):
            self._constants.update(node.output)
            return
        if derived and kind not in CONTRACTIONS and kind not in ("embedding",) and node.op_type != "Gather":
            for output in node.output:
                self._parameters[output] = list(parameters.values())
            return
        if node.op_type in ONNX_VIEWS or (node.op_type == "Dropout" and self._is_idle_dropout(node)):
            for output in node.output[:1]:
                if inputs[0] in self._producer:
                    self._producer[output] = self._producer[inputs[0]]
                self._shapes.setdefault(output, self._shapes.get(inputs[0], ()))
            return
        self._append(node, kind, inputs, list(parameters.values()))

    def _is_idle_dropout(self, node: Any) -> bool:
        return len(node.input) < 3 or not node.input[2]

    def _append(
        self, node: Any, kind: str | None, inputs: list[str], parameters: list[tuple[str, int, float]]
    ) -> None:
        if kind is None:
            kind = node.op_type
            self._unknown[kind] = self._unknown.get(kind, 0) + 1
        outputs = [x for x in node.output if x]
        if outputs and outputs[0] not in self._shapes:
            self._shapeless += 1
            self._shapes[outputs[0]] = self._shape(inputs[0]) if inputs else ()
        if node.op_type == "Gather" and parameters:
            kind = "embedding"
        if kind == "matmul" and parameters:
            kind = "linear"
        shape = self._shape(outputs[0]) if outputs else ()
        if math.prod(shape) > self._limits.elements:
            raise LimitError(
                f"ONNX tensor {outputs[0]!r} is too large",
                expected=f"at most {self._limits.elements} elements",
                got=math.prod(shape),
            )
        if node.op_type in _RECURRENT and len(shape) == 4:
            self._complete_recurrent(node, shape)
        flops, aligned = self._flops(node, kind, shape)
        if node.op_type == "Conv" and self._group(node) > 1 and self._shape(node.input[1])[1:2] == (1,):
            kind = "depthwise_convolution"
        if kind == node.op_type and not flops:
            flops = float(math.prod(shape))
        written = sum(self._bytes(x) for x in outputs)
        read = sum(self._bytes(x) for x in dict.fromkeys(inputs))
        weights = {x for x in inputs if self._parameters.get(x)}
        if kind in ("embedding", "gather"):
            read = written + sum(self._bytes(x) for x in inputs[1:2])
        index = len(self._operators)
        self._operators.append(
            StaticOperator(
                name=node.name or f"{node.op_type}_{index}",
                kind=kind,
                flops=flops,
                read=read,
                written=written,
                inputs=[
                    (self._producer[x], self._bytes(x)) for x in dict.fromkeys(inputs) if x in self._producer
                ],
                factors=[(self._producer[x], 1.0) for x in inputs if x in self._producer]
                if kind in ("matmul", "attention")
                else None,
                parameters=parameters,
                shape=shape,
                dtype=self._dtype(outputs[0]) if outputs else "float32",
                path=_scope(node),
                aligned=aligned,
                input_dtype=next((self._dtype(x) for x in inputs if x not in weights), ""),
                weight_dtype=next((self._dtype(x) for x in inputs if x in weights), ""),
                sizes=sizes_of(
                    node.op_type,
                    kind,
                    [self._shape(x) for x in node.input],
                    shape,
                    partial(self._attribute, node),
                ),
            )
        )
        for output in outputs:
            self._producer[output] = index

    def _check_bodies(self, node: Any) -> None:
        """Refuse a Loop, If or Scan with most of a network's work inside, which would count as nothing.

        Raises:
            InputError: a contraction is in one of its graphs; how often it runs is not known.
        """
        bodies = [body for a in node.attribute for body in ([a.g] if a.HasField("g") else a.graphs)]
        inside = (
            n.op_type
            for body in bodies
            for graph, _ in graphs_of(body, self._limits.depth)
            for n in graph.node
        )
        found = next((kind for kind in inside if ONNX.get(kind) in CONTRACTIONS), None)
        if found is not None:
            raise InputError(
                f"the work inside ONNX {node.op_type} {node.name!r} cannot be counted",
                expected="convolutions, matrix products and recurrent layers outside of Loop, If and Scan",
                got=found,
                hint="export the model with its loops unrolled and its branches resolved",
            )

    def _flops(self, node: Any, kind: str, shape: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        """FLOPs of a contraction, and its contracted and output dimensions; 0 and none for other kinds."""
        if kind not in CONTRACTIONS:
            return 0.0, ()
        first = self._shape(node.input[0])
        second = self._shape(node.input[1]) if len(node.input) > 1 else ()
        count = float(math.prod(shape))
        if node.op_type == "Conv" and second:
            return 2.0 * count * math.prod(second[1:]), second[:2]
        if node.op_type == "ConvTranspose" and second:
            return 2.0 * math.prod(first) * math.prod(second[1:]), second[:2]
        if node.op_type == "Gemm" and first:
            inner = first[0] if self._attribute(node, "transA", 0) else first[-1]
            return 2.0 * count * inner, (inner, *shape[-1:])
        if node.op_type in ("MatMul", "MatMulInteger") and first:
            return 2.0 * count * first[-1], (first[-1], *shape[-1:])
        if node.op_type in _RECURRENT and first and second:
            weights = math.prod(second) + math.prod(self._shape(node.input[2]))
            return 2.0 * math.prod(first[:-1]) * weights, (first[-1], *second[-1:])
        if node.op_type == "Einsum":
            return self._einsum_flops(node), ()
        if kind == "attention" and len(first) == 4 and len(node.input) > 2:
            keys = self._shape(node.input[1])
            return 2.0 * math.prod(first) * keys[-2] + 2.0 * count * keys[-2], first[-1:]
        return count, ()

    def _complete_recurrent(self, node: Any, output: tuple[int, ...]) -> None:
        elements = sum(count for _, count, _ in self._parameters.get(node.input[1], ()))
        hidden = int(self._attribute(node, "hidden_size", output[-1]))
        shapes = recurrent_shapes(node.op_type, output, hidden, elements)
        for name, shape in zip(node.input, shapes, strict=False):
            if len(self._shape(name)) != len(shape):
                self._shapes[name] = shape

    def _einsum_flops(self, node: Any) -> float:
        equation = self._attribute(node, "equation", b"").decode().replace(" ", "").split("->")[0]
        sizes: dict[str, int] = {}
        for term, name in zip(equation.split(","), node.input, strict=False):
            sizes.update(zip(term.replace("...", ""), self._shape(name), strict=False))
        return 2.0 * math.prod(sizes.values())

    def _group(self, node: Any) -> int:
        return int(self._attribute(node, "group", 1))

    def _attribute(self, node: Any, name: str, default: Any) -> Any:
        import onnx

        for attribute in node.attribute:
            if attribute.name == name:
                return onnx.helper.get_attribute_value(attribute)
        return default

    def _shape(self, name: str) -> tuple[int, ...]:
        return self._shapes.get(name, ())

    def _bytes(self, name: str) -> float:
        if name not in self._shapes:
            return 0.0
        return float(math.prod(self._shapes[name]) * item_bytes(self._types.get(name, 1)))

    def _dtype(self, name: str) -> str:
        import onnx

        elem_type = self._types.get(name) or 1
        text = str(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
        return text if elem_type != 16 else "bfloat16"


def _scope(node: Any) -> str:
    for entry in node.metadata_props:
        if entry.key == _SCOPES:
            try:
                scopes = ast.literal_eval(entry.value)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                return ""
            if isinstance(scopes, list) and len(scopes) > 1:
                return str(scopes[-2])
    return ""
