"""NAS-Bench-101 networks for CIFAR-10 (Ying et al., ICML 2019): nine copies of a cell of convolutions and poolings.

A cell is a directed acyclic graph whose vertices are operations. The space of cells, their hashes and channels follow
https://github.com/google-research/nasbench (`generate_graph.py`, `graph_util.py`, `model_builder.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn

from profiling.errors import InputError

INPUT, OUTPUT = -1, -2
OPERATIONS = ("conv3x3-bn-relu", "conv1x1-bn-relu", "maxpool3x3")
MAX_EDGES = 9
_STACKS, _CELLS_PER_STACK, _STEM_CHANNELS, _CLASSES = 3, 3, 128, 10


@dataclass(frozen=True)
class Cell:
    """A cell, with vertices in topological order: first the input, last the output.

    Attributes:
        matrix: `matrix[i][j]` is 1 if vertex j reads vertex i; upper triangular.
        operations: `INPUT`, an index into `OPERATIONS` per interior vertex, `OUTPUT`.
    """

    matrix: tuple[tuple[int, ...], ...]
    operations: tuple[int, ...]

    def __post_init__(self) -> None:
        size = len(self.operations)
        if len(self.matrix) != size or any(len(row) != size for row in self.matrix):
            raise InputError("a cell's matrix does not fit its operations", expected=f"{size} x {size}")
        if any(self.matrix[i][j] for i in range(size) for j in range(i + 1)):
            raise InputError("a cell's matrix is not upper triangular")

    @property
    def vertices(self) -> int:
        return len(self.operations)

    def pruned(self) -> Cell:
        """The cell without vertices that are on no path from input to output.

        Raises:
            InputError: there is no such path.
        """
        last = self.vertices - 1
        forward, backward = {0}, {last}
        for j in range(1, self.vertices):
            if any(self.matrix[i][j] for i in forward):
                forward.add(j)
        for i in range(last - 1, -1, -1):
            if any(self.matrix[i][j] for j in backward):
                backward.add(i)
        kept = sorted(forward & backward)
        if not {0, last} <= set(kept):
            raise InputError("a cell has no path from its input to its output")
        return Cell(
            tuple(tuple(self.matrix[i][j] for j in kept) for i in kept),
            tuple(self.operations[i] for i in kept),
        )

    def fingerprint(self) -> str:
        """MD5 hash, equal for isomorphic cells, by which NAS-Bench identifies them."""
        size = range(self.vertices)
        labels = [
            _md5(str((sum(self.matrix[v]), sum(self.matrix[u][v] for u in size), self.operations[v])))
            for v in size
        ]
        for _ in size:
            labels = [
                _md5(
                    "".join(sorted(labels[u] for u in size if self.matrix[u][v]))
                    + "|"
                    + "".join(sorted(labels[u] for u in size if self.matrix[v][u]))
                    + "|"
                    + labels[v]
                )
                for v in size
            ]
        return _md5(str(sorted(labels)))

    def channels(self, inputs: int, outputs: int) -> list[int]:
        """Channels of each vertex: those that feed the output divide its channels, others have those of their readers."""
        last = self.vertices - 1
        channels = [inputs, *([0] * (self.vertices - 2)), outputs]
        feeding = [v for v in range(1, last) if self.matrix[v][last]]
        for i, vertex in enumerate(feeding):
            channels[vertex] = outputs // len(feeding) + (i < outputs % len(feeding))
        for vertex in range(last - 1, 0, -1):
            if not self.matrix[vertex][last]:
                channels[vertex] = max(channels[u] for u in range(vertex + 1, last) if self.matrix[vertex][u])
        return channels


def cells(max_vertices: int) -> Iterator[Cell]:
    """All distinct cells with up to `max_vertices` vertices and `MAX_EDGES` edges; up to 5 vertices, there are 2,532."""
    seen = set()
    for size in range(2, max_vertices + 1):
        # Isomorphic cells may order their vertices differently, which decides which gets leftover channels: this
        # is upstream's order of enumeration, of which the first cell counts.
        places = [(i, j) for j in range(1, size) for i in range(j)]
        for bits in range(1 << len(places)):
            edges = {place for k, place in enumerate(places) if bits >> k & 1}
            if len(edges) > MAX_EDGES or not _is_full(edges, size):
                continue
            matrix = tuple(tuple(int((i, j) in edges) for j in range(size)) for i in range(size))
            for interior in product(range(len(OPERATIONS)), repeat=size - 2):
                cell = Cell(matrix, (INPUT, *interior, OUTPUT))
                key = cell.fingerprint()
                if key not in seen:
                    seen.add(key)
                    yield cell


def _is_full(edges: set[tuple[int, int]], size: int) -> bool:
    """Whether every vertex except the output is read, and every one except the input reads another."""
    return {i for i, _ in edges} == set(range(size - 1)) and {j for _, j in edges} == set(range(1, size))


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


class ConvBnRelu(nn.Sequential):
    """Convolution without bias, batch norm, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )


class CellModule(nn.Module):
    """(batch, inputs, height, width) to (batch, outputs, height, width)."""

    def __init__(self, cell: Cell, inputs: int, outputs: int) -> None:
        super().__init__()
        self.matrix, self.last = cell.matrix, cell.vertices - 1
        self.channels = cell.channels(inputs, outputs)
        self.operations = nn.ModuleDict()
        self.projections = nn.ModuleDict()
        for v in range(1, self.last):
            kind, width = cell.operations[v], self.channels[v]
            self.operations[str(v)] = (
                nn.MaxPool2d(3, 1, 1) if kind == 2 else ConvBnRelu(width, width, (3, 1)[kind])
            )
        for v in range(1, self.last + 1):
            if self.matrix[0][v]:
                self.projections[str(v)] = ConvBnRelu(inputs, self.channels[v], 1)

    def forward(self, x: Tensor) -> Tensor:
        made: dict[int, Tensor] = {}
        for v in range(1, self.last):
            parts = [made[u][:, : self.channels[v]] for u in range(1, v) if self.matrix[u][v]]
            if self.matrix[0][v]:
                parts.append(self.projections[str(v)](x))
            made[v] = self.operations[str(v)](_sum(parts))
        feeding = [made[v] for v in range(1, self.last) if self.matrix[v][self.last]]
        if not feeding:
            out: Tensor = self.projections[str(self.last)](x)
            return out
        out = torch.cat(feeding, 1) if len(feeding) > 1 else feeding[0]
        return out + self.projections[str(self.last)](x) if self.matrix[0][self.last] else out


def _sum(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


class NasBenchNetwork(nn.Module):
    """Stem with 128 channels and three stacks of three equal cells: (batch, 3, 32, 32) to (batch, 10)."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        cell = cell.pruned()
        self.stem = ConvBnRelu(3, _STEM_CHANNELS, 3)
        width = _STEM_CHANNELS
        body: list[nn.Module] = []
        for stack in range(_STACKS):
            inputs = width
            if stack:
                body.append(nn.MaxPool2d(2, 2))
                width *= 2
            for i in range(_CELLS_PER_STACK):
                body.append(CellModule(cell, inputs if i == 0 else width, width))
        self.body = nn.Sequential(*body)
        self.head = nn.Linear(width, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.stem(x)).mean((2, 3)))
        return out
