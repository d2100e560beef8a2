"""Limits on ONNX files, checked before anything is computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from profiling.errors import InputError, LimitError, UnsafeFileError

MIN_OPSET = 13


@dataclass(frozen=True)
class OnnxLimits:
    """Limits for reading a file.

    Attributes:
        file_bytes: size of the file; weights may be stored as external data.
        nodes: number of operators, including inner graphs.
        depth: nesting depth of graphs.
        elements: elements of one tensor.
        sequence: elements of a `Range`, which shape inference expands.
        seconds: CPU and wall time of reading and shape inference.
        memory_bytes: address space of the reading process.
    """

    file_bytes: int = 2**31
    nodes: int = 100_000
    depth: int = 8
    elements: int = 2**40
    sequence: int = 10**6
    seconds: float = 60.0
    memory_bytes: int = 6 * 2**30

    def __post_init__(self) -> None:
        for name in ("file_bytes", "nodes", "depth", "elements", "sequence", "seconds", "memory_bytes"):
            if not getattr(self, name) > 0:
                raise InputError(f"limit {name} is out of range", expected="above 0", got=getattr(self, name))


def check_size(size: int, limits: OnnxLimits) -> None:
    """Refuse a file by its size.

    Raises:
        LimitError: it is larger than the limit.
    """
    if size > limits.file_bytes:
        raise LimitError(
            "the ONNX file is too large",
            expected=f"at most {limits.file_bytes} bytes",
            got=size,
            hint="save the weights as external data; only shapes are read",
        )


def check_model(model: Any, limits: OnnxLimits) -> None:
    """Refuse a parsed model that is too old, too large, too deep, or points outside its folder.

    Raises:
        InputError: another format or opset, or no graph.
        LimitError: nodes, depth or dimensions over the limit.
        UnsafeFileError: external data outside the folder, recursive functions, or a cycle.
    """
    if not model.graph.node and not model.graph.output:
        raise InputError("the file is not an ONNX model", expected="a graph with nodes", got="none")
    for opset in model.opset_import:
        if opset.domain in ("", "ai.onnx") and opset.version < MIN_OPSET:
            raise InputError(
                "the ONNX file is too old",
                expected=f"opset {MIN_OPSET} or newer",
                got=opset.version,
                hint="convert it with onnx.version_converter, or export it again",
            )
    _check_functions(model, limits)
    count = sum(len(function.node) for function in model.functions)
    for graph, depth in graphs_of(model.graph, limits.depth):
        count += len(graph.node)
        if count > limits.nodes:
            raise LimitError(
                "the ONNX file has too many nodes",
                expected=f"at most {limits.nodes}",
                got=f"over {count - 1}",
            )
        _check_graph(graph, limits, depth)


def graphs_of(graph: Any, limit: int, depth: int = 0) -> Iterator[tuple[Any, int]]:
    """A graph and all graphs nested in it, with their depths.

    Raises:
        UnsafeFileError: nesting is deeper than the limit.
    """
    if depth > limit:
        raise UnsafeFileError(
            "graphs are nested too deeply", expected=f"at most {limit}", got=f"{depth} or more"
        )
    yield graph, depth
    for node in graph.node:
        for attribute in node.attribute:
            inner = [attribute.g] if attribute.HasField("g") else []
            for sub in (*inner, *attribute.graphs):
                yield from graphs_of(sub, limit, depth + 1)


def _check_graph(graph: Any, limits: OnnxLimits, depth: int) -> None:
    for tensor in graph.initializer:
        _check_dims(tensor.name, tensor.dims, limits)
        for entry in tensor.external_data:
            if entry.key == "location":
                _check_location(tensor.name, entry.value)
    for value in graph.input if depth == 0 else ():
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type" or not value.type.tensor_type.HasField("shape"):
            raise InputError(
                f"ONNX input {value.name!r} has no type", expected="a tensor with a shape", got=kind
            )
        if value.type.tensor_type.elem_type == 0:
            raise InputError(f"ONNX input {value.name!r} has no element type", expected="a tensor type")
    for value in (*graph.input, *graph.output, *graph.value_info):
        dims = [d.dim_value for d in value.type.tensor_type.shape.dim if d.HasField("dim_value")]
        _check_dims(value.name, dims, limits)
    _check_ranges(graph, limits)
    made: dict[str, int] = {}
    for i, node in enumerate(graph.node):
        for output in node.output:
            if output and output in made:
                raise UnsafeFileError(
                    f"two ONNX nodes produce {output!r}", expected="each tensor produced once"
                )
            if output:  # an omitted output has an empty name
                made[output] = i
    _check_order(graph, made)


def _check_ranges(graph: Any, limits: OnnxLimits) -> None:
    """Refuse long `Range`s whose length is constant, before shape inference expands them."""
    from onnx import numpy_helper

    constants = {t.name: t for t in graph.initializer}
    for node in graph.node:
        for attribute in node.attribute if node.op_type == "Constant" and node.output else ():
            if attribute.name == "value":
                constants[node.output[0]] = attribute.t
    for node in graph.node:
        if node.op_type != "Range" or not all(name in constants for name in node.input):
            continue
        tensors = [constants[name] for name in node.input]
        if len(tensors) != 3 or any(len(t.dims) and list(t.dims) != [1] for t in tensors):
            continue
        start, limit, step = (float(numpy_helper.to_array(t).reshape(-1)[0]) for t in tensors)
        length = (limit - start) / step if step else float("inf")
        if not length <= limits.sequence:
            raise LimitError(
                "an ONNX Range is too long", expected=f"at most {limits.sequence} elements", got=f"{length:g}"
            )


def _check_dims(name: str, dims: Any, limits: OnnxLimits) -> None:
    elements = 1
    for dim in dims:
        if dim < 0:
            raise UnsafeFileError(f"ONNX tensor {name!r} has a negative dimension", got=dim)
        elements *= max(1, int(dim))
    if elements > limits.elements:
        raise LimitError(
            f"ONNX tensor {name!r} is too large", expected=f"at most {limits.elements} elements", got=elements
        )


def _check_location(name: str, location: str) -> None:
    posix, windows = PurePosixPath(location), PureWindowsPath(location)
    if posix.is_absolute() or windows.drive or windows.root or ".." in (*posix.parts, *windows.parts):
        raise UnsafeFileError(
            f"external data of {name!r} lies outside the model's folder",
            expected="a path inside the folder",
            got=repr(location),
        )


def _check_order(graph: Any, made: dict[str, int]) -> None:
    """Refuse a cycle; `made` maps each tensor to the number of the node that produces it."""
    sources = {i: {made[x] for x in node.input if x in made} for i, node in enumerate(graph.node)}
    try:
        TopologicalSorter(sources).prepare()
    except CycleError as error:
        node = graph.node[error.args[1][0]]
        raise UnsafeFileError(
            "the ONNX graph has a cycle",
            expected="a directed acyclic graph",
            got=f"node {node.name or node.op_type!r}",
        ) from None


def _check_functions(model: Any, limits: OnnxLimits) -> None:
    """Refuse functions that are recursive, directly or indirectly, or too large when inlined.

    Thirty functions of which each calls the next one twice inline to a billion nodes.
    """
    calls = {(f.domain, f.name): {(n.domain, n.op_type) for n in f.node} for f in model.functions}
    nodes_of = {(f.domain, f.name): f for f in model.functions}
    inlined: dict[tuple[str, str], int] = {}
    done: set[tuple[str, str]] = set()
    while len(done) < len(calls):
        leaves = {key for key, used in calls.items() if key not in done and not (used & calls.keys()) - done}
        if not leaves:
            raise UnsafeFileError("functions of the ONNX file are recursive", expected="no recursion")
        for key in leaves:
            inlined[key] = sum(inlined.get((n.domain, n.op_type), 1) for n in nodes_of[key].node)
        done |= leaves
    total = sum(inlined.get((n.domain, n.op_type), 1) for n in model.graph.node)
    if total > limits.nodes or max(inlined.values(), default=0) > limits.nodes:
        raise LimitError(
            "the ONNX file has too many nodes once its functions are inlined", expected=f"at most {limits.nodes}",
            got=max([total, *inlined.values()]),
        )  # fmt: skip
