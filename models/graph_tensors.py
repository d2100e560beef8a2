"""Computation graphs as tensors for the encoder: one row per operator, one edge per tensor between two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.cost.job import OperatorCost
from profiling.graph import ComputationGraph
from profiling.operators import KINDS

_KIND_INDEX = {kind: index for index, kind in enumerate(KINDS)}
# The extra index is for operators of unknown kind.
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
        busy_s: [2, N] device time of the forward and backward pass by the cost model; 0 where a pass does not
            run.
        graph: [N] number of the node's graph.
        count: number of graphs.
    """

    kind: Tensor
    nodes: Tensor
    edge_index: Tensor
    edges: Tensor
    busy_s: Tensor
    graph: Tensor
    count: int


def tensors_of(graph: ComputationGraph, cost: OperatorCost, bandwidth_bytes_per_s: float) -> GraphTensors:
    """Tensors of one graph.

    Args:
        graph: the graph.
        cost: cost of its operators on the device.
        bandwidth_bytes_per_s: memory bandwidth of the device.
    """
    columns = graph.columns
    size = len(graph.operators)
    busy = np.maximum(cost.busy_s.sum(0), 1e-9)
    nodes = np.stack(
        [
            _log1p(columns["forward_flops"]),
            _log1p(columns["backward_flops"]),
            _log1p(columns["bytes_read"] + columns["bytes_written"]),
            _log1p(columns["backward_bytes"]),
            _log1p(columns["parameter_bytes"]),
            _log1p(columns["saved_activation_bytes"]),
            np.log1p(columns["kernel_count"]) / 3,
            columns["tensor_core"],
            np.log(columns["repeat"]) / 3,
            cost.compute_s.sum(0) / busy,
            cost.traffic_bytes.sum(0) / bandwidth_bytes_per_s / busy,
            (np.log(busy) + 10.0) / 5.0,
        ],
        axis=1,
    )
    pairs = np.array([(e.source, e.target) for e in graph.edges], dtype=np.int64).reshape(-1, 2).T
    sizes = np.array([e.bytes for e in graph.edges])
    loops = np.arange(size)
    edge_index = np.concatenate([pairs, pairs[::-1], np.stack([loops, loops])], axis=1)
    # The second feature gives the direction: 1 along the tensor, -1 against it, 0 for the self edge.
    edges = np.concatenate(
        [
            np.stack([_log1p(sizes), np.ones_like(sizes)], 1),
            np.stack([_log1p(sizes), -np.ones_like(sizes)], 1),
            np.zeros((size, 2)),
        ]
    )
    kind = np.array([_KIND_INDEX.get(op.kind, KIND_COUNT - 1) for op in graph.operators], dtype=np.int64)
    return GraphTensors(
        kind=torch.from_numpy(kind),
        nodes=torch.tensor(nodes, dtype=torch.float32),
        edge_index=torch.from_numpy(np.ascontiguousarray(edge_index)),
        edges=torch.tensor(edges, dtype=torch.float32),
        busy_s=torch.tensor(cost.busy_s, dtype=torch.float32),
        graph=torch.zeros(size, dtype=torch.int64),
        count=1,
    )


def side_by_side(parts: Sequence[GraphTensors]) -> GraphTensors:
    """Join several graphs into one, with no edges between them."""
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
