"""Folds repeated layers: consecutive equal sequences of operators become one, with a count."""

from __future__ import annotations

from dataclasses import replace

from profiling.graph import ComputationGraph, Operator, TensorEdge

_MAX_PERIOD = 512


def fold_repeats(graph: ComputationGraph) -> ComputationGraph:
    """The same totals with fewer nodes: of consecutive equal sequences of operators, one is kept, with `repeat`.

    Operators are equal if they differ only in name, module path and layer. The kept sequence has the layer of the
    first, so a folded graph cannot distinguish frozen prefixes within the folded layers; fold only graphs that would
    otherwise be too large. Edges into a copy become edges into the kept sequence; those between copies are dropped.
    """
    operators = graph.operators
    keys: dict[Operator, int] = {}
    ids = [
        keys.setdefault(replace(op, name="", module_path="", layer_index=-1), len(keys)) for op in operators
    ]
    target = list(range(len(operators)))
    kept: list[int] = []
    counts: dict[int, int] = {}
    i = 0
    while i < len(operators):
        period, times = _best(ids, i)
        for offset in range(period):
            kept.append(i + offset)
            counts[i + offset] = times
            for copy in range(times):
                target[i + copy * period + offset] = i + offset
        i += period * times
    position = {old: new for new, old in enumerate(kept)}
    edges: dict[tuple[int, int], float] = {}
    for edge in graph.edges:
        pair = position[target[edge.source]], position[target[edge.target]]
        if pair[0] < pair[1]:
            edges[pair] = max(edges.get(pair, 0.0), edge.bytes)
    return replace(
        graph,
        operators=tuple(replace(operators[k], repeat=operators[k].repeat * counts[k]) for k in kept),
        edges=tuple(TensorEdge(s, t, size) for (s, t), size in edges.items()),
    )


def _best(ids: list[int], start: int) -> tuple[int, int]:
    """Length and count of the repeated sequence at `start` whose folding removes most operators; (1, 1) if none."""
    best, saved = (1, 1), 0
    limit = min(_MAX_PERIOD, (len(ids) - start) // 2)
    nexts = (p for p in range(1, limit + 1) if ids[start + p] == ids[start])
    for period in nexts:
        first = ids[start : start + period]
        times = 1
        while ids[start + times * period : start + (times + 1) * period] == first:
            times += 1
        if (times - 1) * period > saved:
            best, saved = (period, times), (times - 1) * period
    return best
