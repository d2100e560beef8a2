"""Small graphs for tests."""

from __future__ import annotations

from collections.abc import Iterable

from profiling.graph import ComputationGraph, Operator, TensorEdge


def chain(operators: Iterable[Operator], name: str = "chain") -> ComputationGraph:
    """A graph of consecutive operators, each passing on what it writes."""
    ops = tuple(operators)
    return ComputationGraph(
        name, ops, tuple(TensorEdge(i, i + 1, op.bytes_written) for i, op in enumerate(ops[:-1]))
    )
