"""Computation graphs as tensors for the encoder: one row per operator, one column per tensor between two of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.features import OperatorTimes, backward_mask, operator_columns, operator_times
from profiling.devices import DeviceSpec
from profiling.graph import ComputationGraph
from profiling.operators import KINDS
from profiling.workload import Workload

_KIND_INDEX = {kind: index for index, kind in enumerate(KINDS)}
# One index more than there are kinds: an operator that the table does not know.
KIND_COUNT = len(KINDS) + 1
NODE_FEATURES = (
    "log_forward_flops",
    "log_backward_flops",
    "log_forward_bytes",
    "log_backward_bytes",
    "log_parameter_bytes",
    "log_saved_activation_bytes",
    "log_kernel_count",
    "tensor_core",
    "log_repeat",
    "compute_of_busy",
    "memory_of_busy",
    "floor_of_busy",
    "log_busy_s",
)
TENSOR_FEATURES = ("log_bytes", "is_tensor")


@dataclass(frozen=True, slots=True)
class GraphTensors:
    """One graph (or several, side by side) on one device each.

    Attributes:
        kind: [N] operator kind index.
        nodes: [N, len(NODE_FEATURES)].
        edge_index: [2, E], both directions and self edges; row 0 source, row 1 target.
        edges: [E, len(TENSOR_FEATURES)].
        busy_s: [2, N] roofline time of forward and backward pass, frozen ones masked to 0.
        graph: [N] which graph a node belongs to.
        count: number of graphs.
    """

    kind: Tensor
    nodes: Tensor
    edge_index: Tensor
    edges: Tensor
    busy_s: Tensor
    graph: Tensor
    count: int


def tensors_of(
    graph: ComputationGraph,
    device: DeviceSpec,
    workload: Workload,
    columns: np.ndarray | None = None,
    times: OperatorTimes | None = None,
) -> GraphTensors:
    """Tensors of one graph, captured without freezing; `workload.frozen_prefix` masks its backward passes."""
    columns = operator_columns(graph) if columns is None else columns
    times = times or operator_times(columns, device, workload.precision)
    size = len(graph.operators)
    held = np.array([(op.parameter_bytes, op.saved_activation_bytes) for op in graph.operators]).reshape(
        size, 2
    )
    busy = np.maximum(times.busy_s.sum(0), 1e-9)
    nodes = np.stack(
        [
            _log1p(columns[0]),
            _log1p(columns[1]),
            _log1p(columns[2]),
            _log1p(columns[3]),
            _log1p(held[:, 0]),
            _log1p(held[:, 1]),
            np.log1p(columns[4]) / 3,
            columns[5],
            np.log(columns[6]) / 3,
            times.compute_s.sum(0) / busy,
            times.memory_s.sum(0) / busy,
            times.floor_s.sum(0) / busy,
            (np.log(busy) + 10.0) / 5.0,
        ],
        axis=1,
    )
    pairs = np.array([(e.source, e.target) for e in graph.edges], dtype=np.int64).reshape(-1, 2).T
    sizes = np.array([e.bytes for e in graph.edges])
    loops = np.arange(size)
    edge_index = np.concatenate([pairs, pairs[::-1], np.stack([loops, loops])], axis=1)
    # Direction is told by the second feature: 1 along the tensor, -1 against it, 0 for the self edge.
    edges = np.concatenate(
        [
            np.stack([_log1p(sizes), np.ones_like(sizes)], 1),
            np.stack([_log1p(sizes), -np.ones_like(sizes)], 1),
            np.zeros((size, 2)),
        ]
    )
    kind = np.array([_KIND_INDEX.get(op.kind, KIND_COUNT - 1) for op in graph.operators], dtype=np.int64)
    mask = backward_mask(columns, workload.frozen_prefix)
    return GraphTensors(
        kind=torch.from_numpy(kind),
        nodes=torch.tensor(nodes, dtype=torch.float32),
        edge_index=torch.from_numpy(np.ascontiguousarray(edge_index)),
        edges=torch.tensor(edges, dtype=torch.float32),
        busy_s=torch.tensor(times.busy_s * mask, dtype=torch.float32),
        graph=torch.zeros(size, dtype=torch.int64),
        count=1,
    )


def side_by_side(parts: Sequence[GraphTensors]) -> GraphTensors:
    """Several graphs as one with no edges between them."""
    offsets = np.cumsum([0] + [len(p.kind) for p in parts[:-1]])
    return GraphTensors(
        kind=torch.cat([p.kind for p in parts]),
        nodes=torch.cat([p.nodes for p in parts]),
        edge_index=torch.cat([p.edge_index + int(o) for p, o in zip(parts, offsets, strict=True)], 1),
        edges=torch.cat([p.edges for p in parts]),
        busy_s=torch.cat([p.busy_s for p in parts], 1),
        graph=torch.cat([p.graph + i for i, p in enumerate(parts)]),
        count=len(parts),
    )


def _log1p(values: np.ndarray) -> np.ndarray:
    return np.log1p(values) / 10.0
