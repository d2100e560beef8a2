"""Imports run one way without cycles, including imports inside functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Each folder may import itself and those before it.
FOLDERS = ("profiling", "datasets", "models", "predictor", "scheduling", "serving")


def modules() -> dict[str, Path]:
    """Dotted name to file."""
    paths = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


MODULES = modules()


def imports_of(path: Path) -> Iterator[str]:
    """Modules of this project that a file imports at run time, at the top or inside functions."""
    todo: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            todo += node.orelse
        elif not isinstance(node, ast.expr):  # an expression holds no import
            todo += ast.iter_child_nodes(node)


@cache
def graph() -> dict[str, set[str]]:
    """What each module imports."""
    return {
        name: {m for m in imports_of(path) if m in MODULES and m != name} for name, path in MODULES.items()
    }


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_run_one_way(folder: str) -> None:
    allowed = FOLDERS[: FOLDERS.index(folder) + 1]
    upward = [
        f"{name} imports {target}"
        for name, targets in graph().items()
        if name.split(".")[0] == folder
        for target in targets
        if target.split(".")[0] not in allowed
    ]
    assert not upward


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one module (Tarjan, SIAM J. Comput. 1972)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    rings: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for target in sorted(edges[node]):
            if target not in number:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], number[target])
        if low[node] == number[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                rings.append(sorted(component))

    for node in sorted(edges):
        if node not in number:
            visit(node)
    return rings


def test_no_import_cycles() -> None:
    assert circles(graph()) == []


def test_the_search_finds_cycles() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_policies_simulator_and_placement_do_not_import_each_other() -> None:
    """`scheduling.core` holds what they share; only the simulator's scenarios look policies up by name."""
    for name, targets in graph().items():
        if name.startswith(("scheduling.policies", "scheduling.placement")):
            assert not [t for t in targets if t.startswith("scheduling.simulator")], name
        if name.startswith("scheduling.placement"):
            assert not [t for t in targets if t.startswith("scheduling.policies")], name


# What each of these folders may import of the process and of learning, besides itself.
OF_LEARNING = {
    "predictor.gaussian_process": (),
    "predictor.fitted": ("predictor.gaussian_process",),
    "predictor.answering": ("predictor.gaussian_process",),
    "predictor.learning.evidence": ("predictor.gaussian_process",),
    "predictor.learning.answers": ("predictor.gaussian_process", "predictor.learning.evidence"),
    "predictor.learning.memory": ("predictor.gaussian_process", "predictor.learning.evidence"),
}


@pytest.mark.parametrize("folder", OF_LEARNING)
def test_learning_runs_from_evidence_to_answers(folder: str) -> None:
    allowed = tuple(f"{name}." for name in (folder, *OF_LEARNING[folder]))
    inside = [name for name in graph() if name.startswith(f"{folder}.")]
    assert inside
    watched = ("predictor.gaussian_process.", "predictor.learning.")
    assert not [
        f"{name} imports {target}"
        for name in inside
        for target in graph()[name]
        if target.startswith(watched) and not target.startswith(allowed)
    ]


def test_the_service_does_not_import_the_simulator() -> None:
    reached: set[str] = set()
    todo = ["serving.app"]
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo += graph()[name]
    assert not [name for name in reached if name.startswith("scheduling.simulator")]
