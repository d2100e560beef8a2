"""A job's operators with their neighbours; operators that a few layers cannot distinguish are merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from models.cost.job import JobInput
from models.cost.work import Floats
from predictor.training.cost.examples import merge_rows, operator_key
from profiling.graph import ComputationGraph

EDGE_FEATURES = ("log_bytes_per_sample", "from_before", "from_behind")


@dataclass(frozen=True, slots=True, eq=False)
class NeighbourJob(JobInput):
    """R distinct operators of a job and E messages between them.

    Attributes:
        edges: [2, E] int64; row 0 sends, row 1 receives. Tensors carry messages in both directions.
        edge_features: [E, len(EDGE_FEATURES)]; none depends on the batch size.
        position: [R] from 0 (first in the forward pass) to 1.
    """

    edges: np.ndarray = field(default_factory=lambda: np.zeros((2, 0), dtype=np.int64))
    edge_features: Floats = field(default_factory=lambda: np.zeros((0, len(EDGE_FEATURES)), dtype=np.float32))
    position: Floats = field(default_factory=lambda: np.zeros(0, dtype=np.float32))


def neighbour_job(graph: ComputationGraph, job: JobInput, rounds: int) -> NeighbourJob:
    """Merge operators that receive the same information in `rounds` layers of message passing.

    By colour refinement (Weisfeiler and Leman): after r rounds, operators of one colour have equal states
    after r layers of any message-passing network, so one of them with its own neighbours represents all.

    Args:
        graph: the graph that `job` was made from.
        job: the job with all operators of the graph, in its order.
        rounds: layers of the network that will read it.
    """
    key = operator_key(job)
    _, color = np.unique(key, axis=0, return_inverse=True)
    color = color.ravel()
    source = np.array([e.source for e in graph.edges], dtype=np.int64)
    target = np.array([e.target for e in graph.edges], dtype=np.int64)
    size = np.log1p(np.array([e.bytes for e in graph.edges]) / max(graph.batch_size, 1)) / 20
    heard = np.concatenate([source, target])
    hears = np.concatenate([target, source])
    count, tensors = len(color), len(source)
    features = np.zeros((2 * tensors, len(EDGE_FEATURES)), dtype=np.float32)
    features[:, 0] = np.concatenate([size, size])
    features[:tensors, 1] = features[tensors:, 2] = 1.0
    by_hearer = np.argsort(hears, kind="stable")
    start = np.searchsorted(hears[by_hearer], np.arange(count + 1))
    behind = np.arange(2 * tensors) >= tensors
    for _ in range(rounds):
        color = _refined(color, heard, behind, np.round(features[:, 0], 3), by_hearer, start)
    _, first, inverse = np.unique(color, return_index=True, return_inverse=True)
    kept = (
        np.concatenate([by_hearer[start[i] : start[i + 1]] for i in first]) if tensors else np.zeros(0, int)
    )
    edges = np.stack([inverse[heard[kept]], inverse[hears[kept]]]) if tensors else np.zeros((2, 0), int)
    merged = merge_rows(job, first, inverse)
    return NeighbourJob(
        **{f.name: getattr(merged, f.name) for f in fields(JobInput)},
        edges=edges.astype(np.int64),
        edge_features=features[kept],
        position=(first / max(count - 1, 1)).astype(np.float32),
    )


def _refined(
    color: np.ndarray,
    heard: np.ndarray,
    behind: np.ndarray,
    size: Floats,
    by_hearer: np.ndarray,
    start: np.ndarray,
) -> np.ndarray:
    """Colours from each operator's colour and its neighbours', with size and direction of the tensor in
    between."""
    names: dict[tuple[object, ...], int] = {}
    result = np.empty_like(color)
    messages = list(zip(color[heard].tolist(), behind.tolist(), size.tolist(), strict=True))
    for node in range(len(color)):
        around = sorted(messages[e] for e in by_hearer[start[node] : start[node + 1]])
        result[node] = names.setdefault((int(color[node]), *around), len(names))
    return result


def stacked(jobs: Sequence[NeighbourJob]) -> tuple[np.ndarray, Floats, np.ndarray, Floats]:
    """Edges of several jobs (numbered within each), their features, the first edge of each job, and
    positions."""
    start = np.concatenate([[0], np.cumsum([j.edges.shape[1] for j in jobs])]).astype(np.int64)
    return (
        np.concatenate([j.edges for j in jobs], 1),
        np.concatenate([j.edge_features for j in jobs]),
        start,
        np.concatenate([j.position for j in jobs]),
    )
