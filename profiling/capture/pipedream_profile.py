"""Reads PipeDream's `graph.txt` profiles: layers with measured times and sizes, and the edges between them.

Format (Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, public code): one
node per line, `ID -- DESCRIPTION -- forward_compute_time=MS, backward_compute_time=MS, activation_size=BYTES,
parameter_size=BYTES[ -- stage_id=N]`, then one edge per line, `<tab>ID -- ID`. An activation may be a list `[a; b]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from profiling.errors import InputError

_COLUMNS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_MAX_BYTES = 64 * 2**20
# Maximum milliseconds or bytes of a layer: far above any real value, but sums stay finite.
_MOST = 1e18
_NODE = (
    "ID -- DESCRIPTION -- "
    + ", ".join(f"{c}=NUMBER" for c in _COLUMNS)
    + ", then perhaps ' -- stage_id=NUMBER'"
)


@dataclass(frozen=True, slots=True)
class ProfileNode:
    """One layer, for one minibatch on one GPU.

    Attributes:
        id: unique within the profile.
        description: the layer as printed by its framework.
        forward_s, backward_s: seconds.
        activation_bytes: bytes of all its outputs.
        parameter_bytes: bytes of its parameters.
        stage_id: assigned pipeline stage, if the file states it.
        first_output_bytes: bytes of its first output, if it has several.
    """

    id: str
    description: str
    forward_s: float
    backward_s: float
    activation_bytes: float
    parameter_bytes: float
    stage_id: int | None = None
    first_output_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class PipeDreamProfile:
    """Layers of a model in file order, and edges (source id, target id) between them."""

    name: str
    nodes: tuple[ProfileNode, ...]
    edges: tuple[tuple[str, str], ...]


def read_profile(path: Path | str) -> PipeDreamProfile:
    """Read a `graph.txt`.

    Raises:
        InputError: the file is missing, too large or not text, or a line is malformed, repeats a node, refers to an
            unknown node, or closes a cycle; the message states the line number.
    """
    source = Path(path)
    try:
        if source.stat().st_size > _MAX_BYTES:
            raise InputError(f"{source} is too large for a profile", expected=f"at most {_MAX_BYTES} bytes")
        text = source.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError):
        raise InputError(f"no profile at {source}", hint="check the path") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{source} is not text", expected="a PipeDream graph.txt", got=str(error)) from None
    name = re.sub(r"(\.graph)?\.txt$", "", source.name)
    return parse_profile(text, source.parent.name if name == "graph" else name, where=str(source))


def parse_profile(text: str, name: str, where: str = "profile") -> PipeDreamProfile:
    """Parse the text of a `graph.txt`; `where` names it in errors. Raises as `read_profile` does."""
    nodes: dict[str, ProfileNode] = {}
    edges: list[tuple[int, str, str]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        if line.startswith("\t"):
            ends = line.strip().split(" -- ")
            if len(ends) != 2:
                raise InputError(f"{where}, line {number}", expected="an edge 'ID -- ID'", got=repr(line))
            edges.append((number, ends[0].strip(), ends[1].strip()))
            continue
        node = _node(line.strip(), f"{where}, line {number}")
        if node.id in nodes:
            raise InputError(f"{where}, line {number}", expected="each node once", got=f"{node.id} twice")
        nodes[node.id] = node
    if not nodes:
        raise InputError(f"{where} has no nodes", expected=_NODE)
    for number, *ends in edges:
        for end in ends:
            if end not in nodes:
                raise InputError(
                    f"{where}, line {number}: an edge to an unknown node",
                    expected="the ID of a node",
                    got=end,
                )
    _refuse_cycles(nodes, edges, where)
    return PipeDreamProfile(name, tuple(nodes.values()), tuple((s, t) for _, s, t in edges))


def _node(line: str, where: str) -> ProfileNode:
    parts = line.split(" -- ")
    if len(parts) not in (3, 4):
        raise InputError(where, expected=_NODE, got=repr(line[:120]))
    values: dict[str, list[float]] = {}
    for column, text in zip(_COLUMNS, parts[2].split(", "), strict=False):
        key, _, value = text.partition("=")
        if key.strip() != column:
            raise InputError(where, expected=f"{column}=NUMBER", got=repr(text))
        values[column] = _numbers(value.strip(), column, where)
    if len(values) != len(_COLUMNS) or parts[2].count(", ") >= len(_COLUMNS):
        raise InputError(where, expected="the four columns " + ", ".join(_COLUMNS), got=repr(parts[2]))
    stage = None
    if len(parts) == 4:
        match = re.fullmatch(r"stage_id=(\d+)", parts[3].strip())
        if not match:
            raise InputError(where, expected="stage_id=NUMBER", got=repr(parts[3]))
        stage = int(match[1])
    forward_ms, backward_ms, activation_bytes, parameter_bytes = (sum(values[c]) for c in _COLUMNS)
    outputs = values["activation_size"]
    return ProfileNode(
        parts[0].strip(),
        parts[1].strip(),
        forward_ms / 1000,
        backward_ms / 1000,
        activation_bytes,
        parameter_bytes,
        stage,
        outputs[0] if len(outputs) > 1 else None,
    )


def _numbers(text: str, column: str, where: str) -> list[float]:
    items = text[1:-1].split(";") if text.startswith("[") and text.endswith("]") else [text]
    try:
        numbers = [float(item) for item in items]
    except ValueError:
        raise InputError(f"{where}: {column}", expected="a number or a list [a; b]", got=repr(text)) from None
    if not all(0 <= number <= _MOST for number in numbers):
        raise InputError(
            f"{where}: {column} is out of range", expected=f"a number from 0 to {_MOST:g}", got=text
        )
    return numbers


def _refuse_cycles(nodes: dict[str, ProfileNode], edges: list[tuple[int, str, str]], where: str) -> None:
    after: dict[str, list[tuple[int, str]]] = {identifier: [] for identifier in nodes}
    for number, source, target in edges:
        after[source].append((number, target))
    done: set[str] = set()
    for root in nodes:
        open_nodes: dict[str, Iterator[tuple[int, str]]] = {}
        if root not in done:
            open_nodes[root] = iter(after[root])
        while open_nodes:
            node, targets = next(reversed(open_nodes.items()))
            for number, target in targets:
                if target in open_nodes:
                    raise InputError(
                        f"{where}, line {number}", expected="no cycle", got=f"{target} is part of a cycle"
                    )
                if target not in done:
                    open_nodes[target] = iter(after[target])
                    break
            else:
                done.add(node)
                del open_nodes[node]
