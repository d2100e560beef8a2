"""Layers of a model for the state search: costs, successors, and bit sets of ancestors and descendants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from profiling.errors import InputError

if TYPE_CHECKING:
    from profiling.capture.pipedream_profile import PipeDreamProfile


Costs = tuple[float, float, float, float, float]


@dataclass(frozen=True)
class Layers:
    """A DAG in topological order; bit `i` of a bit set is layer `i`.

    Attributes:
        members: names of the nodes that each layer represents.
        inputs: names of input nodes, set aside.
        columns: per layer (forward and backward seconds, activation bytes held, parameter bytes, forward
            seconds, output bytes).
        after: successors of each layer.
        source: the layer that a search starts from.
    """

    name: str
    members: tuple[tuple[str, ...], ...]
    inputs: tuple[str, ...]
    columns: tuple[Costs, ...]
    after: tuple[tuple[int, ...], ...]
    source: int

    @classmethod
    def from_profile(cls, profile: PipeDreamProfile) -> Layers:
        """Without `Input*` sources and `__getitem__*` sinks.

        Searches start from the first source in the file.

        Raises:
            InputError: nothing is left.
        """
        targets = {t for _, t in profile.edges}
        inputs = [n.id for n in profile.nodes if n.id not in targets and n.description.startswith("Input")]
        edges = [(s, t) for s, t in profile.edges if s not in inputs]
        sources = {s for s, _ in edges}
        left = [
            n
            for n in profile.nodes
            if n.id not in inputs and (n.id in sources or not n.description.startswith("__getitem__"))
        ]
        if not left:
            raise InputError(f"{profile.name} has nothing to plan", expected="a layer that is not an input")
        index = {node.id: i for i, node in enumerate(left)}
        after: list[list[int]] = [[] for _ in left]
        for source, target in edges:
            if target in index:
                after[index[source]].append(index[target])
        fed = {t for row in after for t in row}
        first = next(i for i in range(len(left)) if i not in fed)
        return cls._ordered(
            profile.name,
            [(n.id,) for n in left],
            tuple(inputs),
            [
                (
                    n.forward_s + n.backward_s,
                    n.activation_bytes,
                    n.parameter_bytes,
                    n.forward_s,
                    n.activation_bytes,
                )
                for n in left
            ],
            after,
            first,
        )

    @classmethod
    def _ordered(
        cls,
        name: str,
        members: list[tuple[str, ...]],
        inputs: tuple[str, ...],
        columns: list[Costs],
        after: list[list[int]],
        source: int,
    ) -> Layers:
        order = topological(after)
        place = {old: new for new, old in enumerate(order)}
        return cls(
            name,
            tuple(members[i] for i in order),
            inputs,
            tuple(columns[i] for i in order),
            tuple(tuple(dict.fromkeys(place[t] for t in after[i])) for i in order),
            place[source],
        )

    def rooted(self) -> Layers:
        """The same with one free layer before all sources, if there are several."""
        fed = {t for row in self.after for t in row}
        roots = [i for i in range(len(self.after)) if i not in fed]
        if len(roots) == 1:
            return self
        return Layers(
            self.name,
            ((), *self.members),
            self.inputs,
            ((0.0, 0.0, 0.0, 0.0, 0.0), *self.columns),
            (tuple(i + 1 for i in roots), *(tuple(t + 1 for t in row) for row in self.after)),
            0,
        )

    def branches_merged(self, last_activation_only: bool = False) -> Layers:
        """Merge chains inside branches into one layer each.

        A layer that all others precede or follow stays as it is.
        """
        count = len(self.after)
        apart = [(self.ancestors[i] | self.descendants[i]).bit_count() < count - 1 for i in range(count)]
        feeders = [0] * count
        for row in self.after:
            for target in row:
                feeders[target] += 1
        head = list(range(count))
        for i, row in enumerate(self.after):
            if len(row) == 1 and feeders[row[0]] == 1 and apart[i] and apart[row[0]]:
                head[row[0]] = head[i]
        kept = [i for i in range(count) if head[i] == i]
        chains: dict[int, list[int]] = {i: [] for i in kept}
        for i in range(count):
            chains[head[i]].append(i)
        place = {old: new for new, old in enumerate(kept)}
        columns = []
        for chain in chains.values():
            time, held, parameters, forward = (sum(self.columns[i][c] for i in chain) for c in range(4))
            output = self.columns[chain[-1]][4]
            columns.append((time, output if last_activation_only else held, parameters, forward, output))
        return Layers._ordered(
            self.name,
            [tuple(name for i in chain for name in self.members[i]) for chain in chains.values()],
            self.inputs,
            columns,
            [[place[head[t]] for t in self.after[chain[-1]]] for chain in chains.values()],
            place[head[self.source]],
        )

    @property
    def is_chain(self) -> bool:
        return all(row == (i + 1,) for i, row in enumerate(self.after[:-1]))

    @cached_property
    def successors(self) -> list[int]:
        return [sum(1 << t for t in row) for row in self.after]

    @cached_property
    def descendants(self) -> list[int]:
        result = [0] * len(self.after)
        for i in range(len(self.after) - 1, -1, -1):
            for target in self.after[i]:
                result[i] |= 1 << target | result[target]
        return result

    @cached_property
    def ancestors(self) -> list[int]:
        result = [0] * len(self.after)
        for i, row in enumerate(self.after):
            for target in row:
                result[target] |= 1 << i | result[i]
        return result


def topological(after: list[list[int]]) -> list[int]:
    """Reverse depth-first post-order from the first node."""
    finished: list[int] = []
    seen = [False] * len(after)
    for root in range(len(after)):
        if seen[root]:
            continue
        seen[root] = True
        stack = [(root, iter(after[root]))]
        while stack:
            node, targets = stack[-1]
            for target in targets:
                if not seen[target]:
                    seen[target] = True
                    stack.append((target, iter(after[target])))
                    break
            else:
                finished.append(node)
                stack.pop()
    return finished[::-1]


def bits(value: int) -> Iterator[int]:
    while value:
        low = value & -value
        yield low.bit_length() - 1
        value ^= low
