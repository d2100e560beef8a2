"""Assigns measured operator times to graph nodes, and writes them as JSON and as PipeDream's `graph.txt`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from profiling.errors import InputError
from profiling.files import read_json, write_json, write_whole
from profiling.graph import ComputationGraph, Operator
from profiling.workload import Workload

# FLOPs that take as long as one byte of traffic; used only to divide a module's time among its operators.
_FLOPS_PER_BYTE = 10.0


def own_graph(workload: Workload) -> dict[str, Any] | None:
    """The graph of a factory's job, to be stored with its operator times; None for a zoo model.

    It is stored because the factory's code may change, or be missing where the times are exported. This runs the
    user's code.

    Raises:
        InputError: the job cannot be captured.
    """
    if ":" not in workload.model:
        return None
    from profiling.capture import graph_for

    return graph_for(workload, local=True).to_dict()


def export_operators(record: dict[str, Any], folder: Path) -> dict[str, Any] | None:
    """Assign the times of an `operators` record to the nodes of its graph; write `NAME.json` and `NAME.graph.txt`.

    Where `NAME.json` has the times of the job on another device, the names end in `-DEVICE`.

    `record["nodes"]` is set to one row per node, for the `graphs` table. Nothing happens if the record has no times,
    or is of a factory but lacks the graph: code that a record names is never imported.

    Returns:
        The contents of the JSON file; None if nothing was written.
    """
    workload = Workload.parse(record["members"][0]["workload"])
    own = record.get("graph")
    if not record.get("operators") or (":" in workload.model and own is None):
        return None
    from profiling.capture import graph_for

    graph = graph_for(workload) if own is None else ComputationGraph.from_dict(own)
    profile = record["operators"]
    forward, backward = times_per_node(graph, profile["rows"])
    record["nodes"] = node_rows(graph, forward, backward)
    stem = re.sub(r"[^A-Za-z0-9.=-]+", "-", str(workload))
    if _device_of(folder / f"{stem}.json") not in (None, record["device"]):
        stem += "-" + re.sub(r"[^A-Za-z0-9.=-]+", "-", record["device"])
    body = {
        "format": "cotenant-timed-graph",
        "version": 1,
        "device": record["device"],
        "workload": str(workload),
        "forward_time_s": forward,
        "backward_time_s": backward,
        "optimizer_time_s": profile["optimizer_s"],
        "step_time_s": profile["step_time_s"],
        "graph": graph.to_dict(),
    }
    write_json(folder / f"{stem}.json", body)
    write_whole(folder / f"{stem}.graph.txt", pipedream_text(graph, forward, backward))
    return body


def _device_of(path: Path) -> str | None:
    """The device of a timed graph; None if `path` has none."""
    try:
        body = read_json(path)
    except InputError:
        return None
    return body.get("device") if isinstance(body, dict) else None


def times_per_node(
    graph: ComputationGraph, rows: Sequence[dict[str, Any]]
) -> tuple[list[float], list[float]]:
    """Divide measured times among the nodes of `graph`; the sums are preserved.

    A row goes to the nodes of its module and kind. If that module has none of this kind (a fused operator may have
    another name), it goes to all nodes of the module; if there is no such module, to those of the nearest enclosing
    one. Among several nodes it is divided in proportion to their FLOPs and bytes.

    Args:
        graph: N nodes.
        rows: `module`, `kind`, `forward_s` and `backward_s` of each.

    Returns:
        [N] forward and [N] backward seconds.
    """
    exact: dict[tuple[str, str], list[int]] = defaultdict(list)
    subtree: dict[str, list[int]] = defaultdict(list)
    for index, op in enumerate(graph.operators):
        exact[op.module_path, op.kind].append(index)
        path = op.module_path
        while True:
            subtree[path].append(index)
            if not path:
                break
            path = path.rpartition(".")[0]
    forward, backward = [0.0] * len(graph.operators), [0.0] * len(graph.operators)
    for row in rows:
        path = row["module"]
        nodes = exact.get((path, row["kind"]))
        while not nodes:
            nodes = subtree.get(path)
            if not path:
                break
            path = path.rpartition(".")[0]
        if not nodes:
            continue
        for name, target, weigh in (
            ("forward_s", forward, _forward_weight),
            ("backward_s", backward, _backward_weight),
        ):
            weights = [weigh(graph.operators[i]) for i in nodes]
            total = sum(weights)
            for i, weight in zip(nodes, weights, strict=True):
                target[i] += row[name] * (weight / total if total else 1 / len(nodes))
    return forward, backward


def _forward_weight(op: Operator) -> float:
    return op.repeat * (op.forward_flops / _FLOPS_PER_BYTE + op.bytes_read + op.bytes_written)


def _backward_weight(op: Operator) -> float:
    return op.repeat * (op.backward_flops / _FLOPS_PER_BYTE + op.backward_bytes)


def node_rows(
    graph: ComputationGraph, forward: Sequence[float], backward: Sequence[float]
) -> list[dict[str, Any]]:
    """Rows of the `graphs` table, one per node; times and sizes cover all executions of a folded node."""
    inputs: dict[int, list[str]] = defaultdict(list)
    for edge in graph.edges:
        inputs[edge.target].append(graph.operators[edge.source].name)
    return [
        {
            "node": op.name,
            "operator": f"{op.kind}({op.module_path})",
            "inputs": " ".join(inputs[i]) or None,
            "forward_time_s": forward[i],
            "backward_time_s": backward[i],
            "activation_bytes": op.bytes_written * op.repeat,
            "parameter_bytes": op.parameter_bytes,
        }
        for i, op in enumerate(graph.operators)
    ]


def pipedream_text(graph: ComputationGraph, forward: Sequence[float], backward: Sequence[float]) -> str:
    """PipeDream's profile format: times in ms, sizes in bytes, then the edges."""
    lines = [
        f"node{i + 1} -- {op.kind}({op.module_path}) -- forward_compute_time={forward[i] * 1e3:.6f}, "
        f"backward_compute_time={backward[i] * 1e3:.6f}, activation_size={op.bytes_written * op.repeat:.3f}, "
        f"parameter_size={op.parameter_bytes:.3f}"
        for i, op in enumerate(graph.operators)
    ]
    lines += [f"\tnode{e.source + 1} -- node{e.target + 1}" for e in graph.edges]
    return "\n".join(lines) + "\n"
