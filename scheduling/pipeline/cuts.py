"""Where a captured graph may be cut: at blocks, at modules, or at every operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from profiling.errors import UnknownNameError

if TYPE_CHECKING:
    from profiling.graph import ComputationGraph

GRANULARITIES = ("block", "module", "operator")
MIN_BLOCK_LAYERS = 4
"""A convolution with its normalisation, or an expert's three projections, is a part of a block; a residual block has four layers."""


def cut_points(graph: ComputationGraph, granularity: str = "block") -> dict[int, str]:
    """First operator of each piece → the module that starts there; empty for the first piece.

    `block` cuts before members of a list (`blocks.3`, `layer2.0`) that have at least `MIN_BLOCK_LAYERS`
    layers with parameters, and before the modules beside such lists (stem, head). Of nested lists, the
    innermost counts. A model without blocks is cut at its modules.

    `module` cuts before every module whose operators are consecutive (it is called once). If several start at
    the same operator, the outermost is named, but never a list, which is not called itself.

    `operator` cuts anywhere; where no module starts, the path is empty, and no `split_spec` can express the
    cut.

    Raises:
        UnknownNameError: no such granularity.
    """
    if granularity not in GRANULARITIES:
        raise UnknownNameError(
            "unknown granularity", expected="one of " + ", ".join(GRANULARITIES), got=granularity
        )
    paths = [op.module_path for op in graph.operators]
    if granularity == "operator":
        starts = _starts(paths, None)
        return {index: starts.get(index, "") for index in range(len(paths))}
    if granularity == "block":
        layers = dict.fromkeys(op.module_path for op in graph.operators if op.parameter_bytes > 0)
        allowed = _beside_blocks(dict.fromkeys(p for path in paths for p in enclosing(path)), list(layers))
        if allowed:
            return _starts(paths, allowed)
    return _starts(paths, None)


def enclosing(path: str) -> list[str]:
    """`a.b.c` → `a`, `a.b`, `a.b.c`."""
    parts = path.split(".") if path else []
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _starts(paths: Sequence[str], allowed: set[str] | None) -> dict[int, str]:
    """First operators of the modules (those allowed, or all) that are called once."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, path in enumerate(paths):
        for outer in enclosing(path):
            first.setdefault(outer, index)
            last[outer] = index
    lists = _lists(first)
    starts: dict[int, str] = {0: ""}
    for path, index in sorted(first.items(), key=lambda item: item[0].count(".")):
        if index in starts or path in lists or (allowed is not None and path not in allowed):
            continue
        if all(path in enclosing(inner) for inner in paths[index : last[path] + 1]):
            starts[index] = path
    return dict(sorted(starts.items()))


def _lists(paths: dict[str, int] | dict[str, None]) -> set[str]:
    """Modules whose children are all named by numbers."""
    parents = {path.rpartition(".")[0] for path in paths} - {""}
    named = {path.rpartition(".")[0] for path in paths if not path.rpartition(".")[2].isdigit()}
    return parents - named


def _beside_blocks(paths: dict[str, None], layers: Sequence[str]) -> set[str]:
    """Blocks, and the modules beside them and beside their containers; empty if there are no blocks."""
    count = dict.fromkeys(paths, 0)
    for layer in layers:
        for outer in enclosing(layer):
            count[outer] += 1
    members: dict[str, list[str]] = {}
    for path in paths:
        parent, _, name = path.rpartition(".")
        if name.isdigit() and count[path] >= MIN_BLOCK_LAYERS:
            members.setdefault(parent, []).append(path)
    # A module with two or more blocks is opened, and so is everything around it.
    opened = {
        outer for parent, inside in members.items() if len(inside) > 1 for outer in ("", *enclosing(parent))
    }
    return {path for path in paths if path.rpartition(".")[0] in opened} if opened else set()
