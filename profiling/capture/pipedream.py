"""Converts PipeDream's `graph.txt` profiles (Narayanan et al. 2019) into computation graphs."""

from __future__ import annotations

import math
import re
from pathlib import Path

from profiling.capture.pipedream_profile import PipeDreamProfile, read_profile
from profiling.capture.static import StaticOperator, assemble
from profiling.graph import ComputationGraph
from profiling.operator_sizes import NO_SIZES, OperatorSizes, window_sizes
from profiling.operators import CONTRACTIONS, MODULES
from profiling.workload import Workload

_VIEWS = ("Input", "View", "Size", "__getitem__")


def capture_pipedream(path: Path | str, *, workload: Workload | None = None) -> ComputationGraph:
    """The graph of a training step from a PipeDream profile.

    FLOPs follow from each layer's description and the size of its (first) output. The graph's options contain the
    sums of the measured times (`forward_time_s`, `backward_time_s`). The file does not state the batch size, so it is
    the workload's, or 1; all sizes are for the batch that was profiled.

    Raises:
        InputError: as for `read_profile`.
    """
    profile = read_profile(path)
    options = workload or Workload(model=profile.name)
    operators, input_bytes = _operators(profile)
    graph = assemble(
        profile.name,
        operators,
        batch_size=options.batch_size or 1,
        input_bytes=input_bytes,
        workload=options,
        source="pipedream",
    )
    graph.options["forward_time_s"] = sum(node.forward_s for node in profile.nodes)
    graph.options["backward_time_s"] = sum(node.backward_s for node in profile.nodes)
    return graph


def _order(profile: PipeDreamProfile) -> list[str]:
    """Ids of the nodes in topological order; among independent ones, by number."""
    waits = {node.id: 0 for node in profile.nodes}
    users: dict[str, list[str]] = {}
    for start, end in profile.edges:
        waits[end] += 1
        users.setdefault(start, []).append(end)
    ready = sorted((n for n, count in waits.items() if not count), key=_number, reverse=True)
    order = []
    while ready:
        name = ready.pop()
        order.append(name)
        for user in sorted(users.get(name, ()), key=_number, reverse=True):
            waits[user] -= 1
            if not waits[user]:
                ready.append(user)
    return order


def _number(name: str) -> tuple[int, str]:
    digits = re.search(r"\d+$", name)
    return int(digits[0]) if digits else 0, name


def _operators(profile: PipeDreamProfile) -> tuple[list[StaticOperator], float]:
    nodes = {node.id: node for node in profile.nodes}
    sorted_nodes = _order(profile)
    order = [n for n in sorted_nodes if not nodes[n].description.startswith(_VIEWS)]
    index = {name: i for i, name in enumerate(order)}
    direct: dict[str, list[str]] = {}
    for start, end in profile.edges:
        direct.setdefault(end, []).append(start)
    sources: dict[str, list[str]] = {}
    for name in sorted_nodes:
        # A view is replaced by the node that it views.
        through = (sources[s] if s not in index and sources[s] else [s] for s in direct.get(name, ()))
        sources[name] = list(dict.fromkeys(s for ids in through for s in ids))
    operators = []
    input_bytes = 0.0
    for name in order:
        description = nodes[name].description
        written, weights = nodes[name].activation_bytes, nodes[name].parameter_bytes
        inputs = [(index[s], nodes[s].activation_bytes) for s in sources[name] if s in index]
        outside = [nodes[s].activation_bytes for s in sources[name] if s not in index]
        input_bytes += sum(outside)
        module = re.split(r"[(\s]", description, maxsplit=1)[0]
        kind = MODULES.get(module, module)
        first = nodes[name].first_output_bytes
        elements = (written if first is None else first) / 4
        flops = _flops(kind, description, elements, weights)
        groups = _groups(description)
        if kind == "convolution" and groups > 1:
            counts = re.findall(r"\((\d+), (\d+)", description)
            if counts and int(counts[0][0]) == groups:
                kind = "depthwise_convolution"
        operators.append(
            StaticOperator(
                name=f"{name}.{module}",
                kind=kind,
                flops=flops if kind in CONTRACTIONS or kind in MODULES.values() else written / 4,
                read=sum(size for _, size in inputs) + sum(outside) + weights,
                written=written,
                inputs=inputs,
                parameters=[(f"{name}.weight", int(weights / 4), weights)] if weights else [],
                shape=(int(elements),),
                path=name,
                aligned=_aligned(kind, description),
                input_dtype="int64" if kind == "embedding" else "float32",
                weight_dtype="float32" if weights else "",
                sizes=_sizes(kind, description, int(elements)),
            )
        )
    return operators, input_bytes


def _flops(kind: str, description: str, elements: float, weight_bytes: float) -> float:
    """Forward FLOPs of a layer with `elements` output elements."""
    channels = _channels(description)
    if kind not in CONTRACTIONS or channels is None:
        if kind in ("recurrent", "attention") and weight_bytes:
            # Each weight is applied once per position; the width in the description gives the number of positions.
            inner = re.search(r"(?:LSTM|GRU|RNN)\w*\((\d+), (\d+)", description)
            width = int(inner[2]) if inner else 1024
            return 2 * (weight_bytes / 4) * elements / width
        return 0.0
    inputs, outputs = channels
    if kind == "linear":
        return 2 * elements * inputs
    if kind == "recurrent":
        return 2 * (weight_bytes / 4) * elements / outputs
    return 2 * elements * math.prod(_window(description, "kernel_size")) * inputs / _groups(description)


def _sizes(kind: str, description: str, elements: int) -> OperatorSizes:
    """Sizes from a layer's description; positions, over all samples, follow from the number of output elements."""
    numbers = [int(n) for n in re.findall(r"\d+", description)]
    channels = _channels(description)
    if channels is None:
        if kind in ("batch_norm", "layer_norm") and numbers:
            size = elements // numbers[0] if kind == "batch_norm" else numbers[0]
            return OperatorSizes(reduction_size=size, reduction_count=elements // max(1, size))
        return NO_SIZES
    inputs, outputs = channels
    if kind == "embedding":
        return OperatorSizes(table_rows=inputs, table_width=outputs)
    if kind == "linear":
        return OperatorSizes(gemm_batch=1, gemm_m=elements // outputs, gemm_n=outputs, gemm_k=inputs)
    if kind in ("convolution", "depthwise_convolution"):
        groups = _groups(description)
        kernel, stride = _window(description, "kernel_size"), _window(description, "stride")
        shared = window_sizes(
            (0,) * len(kernel),
            (inputs, outputs),
            kernel,
            stride,
            max(_window(description, "dilation")),
            groups,
        )
        return OperatorSizes(
            gemm_batch=groups,
            gemm_m=elements // outputs,
            gemm_n=outputs // groups,
            gemm_k=inputs // groups * math.prod(kernel),
            **shared,
        )
    return NO_SIZES


def _window(description: str, key: str) -> tuple[int, ...]:
    match = re.search(rf"{key}=\(?([\d, ]+)\)?", description)
    return tuple(int(n) for n in re.findall(r"\d+", match[1])) if match else (1, 1)


def _groups(description: str) -> int:
    match = re.search(r"groups=(\d+)", description)
    return int(match[1]) if match else 1


def _channels(description: str) -> tuple[int, int] | None:
    """Input and output channels (or features), with which most descriptions begin; None if there are none."""
    match = re.match(r"\w+\(\s*(?:in_features=)?(\d+), (?:out_features=)?(\d+)", description)
    return (int(match[1]), int(match[2])) if match else None


def _aligned(kind: str, description: str) -> tuple[int, ...]:
    channels = _channels(description)
    if channels is None or kind not in CONTRACTIONS:
        return ()
    return channels[0] // _groups(description), channels[1]
