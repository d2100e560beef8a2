"""PipeDream's `graph.txt` profiles (Narayanan et al. 2019) into computation graphs.

A line is `node12 -- Conv2d(64, 128, ...) -- forward_compute_time=..., backward_compute_time=..., activation_size=...,
parameter_size=...` with times in milliseconds and sizes in bytes for the profiled batch, or `\\tnode12 -- node13`.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from profiling.capture.static import StaticOperator, assemble
from profiling.errors import InputError
from profiling.graph import ComputationGraph
from profiling.operators import CONTRACTIONS, MODULES
from profiling.workload import Workload

_NODE = re.compile(r"^(node\d+) -- (.+?) -- (forward_compute_time=.*)$")
_EDGE = re.compile(r"^\s+(node\d+) -- (node\d+)\s*$")
_SIZES = {"forward_compute_time", "backward_compute_time", "activation_size", "parameter_size"}
_VIEWS = ("Input", "View", "Size", "__getitem__")
_MAX_BYTES = 64 * 2**20


def capture_pipedream(
    path: Path | str, *, workload: Workload | None = None, name: str | None = None
) -> ComputationGraph:
    """The graph of a training step from a PipeDream profile.

    FLOPs follow from each layer's description and its activation's size; the measured times are summed in the
    graph's options (`forward_time_s`, `backward_time_s`). The batch size is not in the file: it is the workload's,
    or 1, and all sizes are for whatever batch was profiled.

    Raises:
        InputError: no such file, a line that is neither node nor edge, an edge to nowhere, or a cycle.
    """
    source = Path(path)
    try:
        if source.stat().st_size > _MAX_BYTES:
            raise InputError(f"{source} is too large for a profile", expected=f"at most {_MAX_BYTES} bytes")
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{source} cannot be read", expected="PipeDream's graph.txt", got=str(error)
        ) from None
    nodes, edges = _parse(text, source)
    options = workload or Workload(model=source.stem)
    operators, input_bytes = _operators(nodes, edges, source)
    graph = assemble(
        name or source.name.removesuffix(".graph.txt").removesuffix(".txt"),
        operators,
        batch_size=options.batch_size or 1,
        input_bytes=input_bytes,
        workload=options,
        source="pipedream",
    )
    for way in ("forward", "backward"):
        graph.options[f"{way}_time_s"] = (
            sum(sizes[f"{way}_compute_time"] for _, sizes in nodes.values()) / 1e3
        )
    return graph


def _parse(text: str, source: Path) -> tuple[dict[str, tuple[str, dict[str, float]]], list[tuple[str, str]]]:
    nodes: dict[str, tuple[str, dict[str, float]]] = {}
    edges: list[tuple[str, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        if match := _EDGE.match(line):
            edges.append((match[1], match[2]))
        elif match := _NODE.match(line):
            nodes[match[1]] = (match[2], _sizes(match[3], source, number))
        else:
            raise InputError(
                f"{source}, line {number} is neither a node nor an edge",
                expected="'nodeN -- description -- forward_compute_time=...' or '<tab>nodeN -- nodeM'",
                got=repr(line[:80]),
            )
    for pair in edges:
        for end in pair:
            if end not in nodes:
                raise InputError(f"{source} has an edge to {end}, which is not there")
    if not nodes:
        raise InputError(f"{source} has no nodes", expected="PipeDream's graph.txt")
    return nodes, edges


def _sizes(text: str, source: Path, number: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in text.split(", "):
        key, _, value = part.partition("=")
        if key == "activation_size" and value.startswith("["):
            value = value.strip("[]").split(";")[0]
        try:
            found[key.strip()] = float(value)
        except ValueError:
            # Several outputs: "activation_size=[a; b]".
            found[key.strip()] = sum(float(x) for x in re.findall(r"[\d.]+", value))
    missing = _SIZES - found.keys()
    if missing or not all(0 <= found[key] < math.inf for key in _SIZES):
        raise InputError(
            f"{source}, line {number} lacks numbers", expected=", ".join(sorted(_SIZES)), got=text[:80]
        )
    return found


def _order(names: list[str], edges: list[tuple[str, str]], source: Path) -> list[str]:
    waits = dict.fromkeys(names, 0)
    users: dict[str, list[str]] = {}
    for start, end in edges:
        waits[end] += 1
        users.setdefault(start, []).append(end)
    ready = sorted((n for n in names if not waits[n]), key=_number, reverse=True)
    order = []
    while ready:
        name = ready.pop()
        order.append(name)
        for user in sorted(users.get(name, ()), key=_number, reverse=True):
            waits[user] -= 1
            if not waits[user]:
                ready.append(user)
    if len(order) < len(names):
        raise InputError(f"{source} has a cycle", expected="a directed acyclic graph")
    return order


def _number(name: str) -> int:
    return int(name.removeprefix("node"))


def _operators(
    nodes: dict[str, tuple[str, dict[str, float]]], edges: list[tuple[str, str]], source: Path
) -> tuple[list[StaticOperator], float]:
    sorted_nodes = _order(list(nodes), edges, source)
    order = [n for n in sorted_nodes if not nodes[n][0].startswith(_VIEWS)]
    index = {name: i for i, name in enumerate(order)}
    direct: dict[str, list[str]] = {}
    for start, end in edges:
        direct.setdefault(end, []).append(start)
    sources: dict[str, list[str]] = {}
    for name in sorted_nodes:
        # A view stands for whatever it looks at.
        through = (sources[s] if s not in index and sources[s] else [s] for s in direct.get(name, ()))
        sources[name] = list(dict.fromkeys(s for found in through for s in found))
    operators = []
    input_bytes = 0.0
    for name in order:
        description, sizes = nodes[name]
        written, weights = sizes["activation_size"], sizes["parameter_size"]
        inputs = [(index[s], nodes[s][1]["activation_size"]) for s in sources.get(name, ()) if s in index]
        outside = [nodes[s][1]["activation_size"] for s in sources.get(name, ()) if s not in index]
        input_bytes += sum(outside)
        module = re.split(r"[(\s]", description, maxsplit=1)[0]
        kind = MODULES.get(module, module)
        flops = _flops(kind, description, written / 4, weights)
        if kind == "convolution" and _integer(description, "groups", 1) > 1:
            counts = re.findall(r"\((\d+), (\d+)", description)
            if counts and int(counts[0][0]) == _integer(description, "groups", 1):
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
                shape=(int(written / 4),),
                path=name,
                aligned=_aligned(kind, description),
            )
        )
    return operators, input_bytes


def _flops(kind: str, description: str, elements: float, weight_bytes: float) -> float:
    """FLOPs of a layer that makes so many elements."""
    widths = re.match(r"\w+\(\s*(?:in_features=)?(\d+), (?:out_features=)?(\d+)", description)
    if kind not in CONTRACTIONS or widths is None:
        if kind in ("recurrent", "attention") and weight_bytes:
            # Every weight is applied once per position; positions from the width of the description.
            inner = re.search(r"(?:LSTM|GRU|RNN)\w*\((\d+), (\d+)", description)
            width = int(inner[2]) if inner else 1024
            return 2 * (weight_bytes / 4) * elements / width
        return 0.0
    inputs, outputs = int(widths[1]), int(widths[2])
    if kind == "linear":
        return 2 * elements * inputs
    if kind == "recurrent":
        return 2 * (weight_bytes / 4) * elements / outputs
    kernel = re.search(r"kernel_size=\(?([\d, ]+)\)?", description)
    taps = math.prod(int(k) for k in re.findall(r"\d+", kernel[1])) if kernel else 1
    return 2 * elements * taps * inputs / _integer(description, "groups", 1)


def _integer(description: str, key: str, default: int) -> int:
    match = re.search(rf"{key}=(\d+)", description)
    return int(match[1]) if match else default


def _aligned(kind: str, description: str) -> tuple[int, ...]:
    widths = re.match(r"\w+\(\s*(?:in_features=)?(\d+), (?:out_features=)?(\d+)", description)
    if widths is None or kind not in CONTRACTIONS:
        return ()
    return int(widths[1]) // _integer(description, "groups", 1), int(widths[2])
