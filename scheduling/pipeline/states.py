"""Where a model can be cut: the states between the stages of a pipeline, and what lies before each.

A state of a DAG is an antichain; its down-set is what has been computed when the state is reached. A cut between two
states `a` before `b` makes a stage of the nodes in the down-set of `b` and not of `a`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from profiling.errors import InputError, LimitError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from profiling.capture.pipedream import PipeDreamProfile

MAX_STATES = 6000
"""More than this many states need tens of gigabytes; such a graph has to be coarsened first."""


@dataclass(frozen=True)
class StateSpace:
    """States in topological order, with a first, empty one in front: `n` states are boundaries 0..n.

    Attributes:
        nodes: names of the nodes, in the order of the bits of `down_sets`.
        inputs: names of input nodes, which always belong to the first stage and cost nothing.
        down_sets: [n + 1] bit sets over `nodes`; the first is empty.
        compute_s, activation_bytes, parameter_bytes: [n + 1] sums over each down-set (forward and backward seconds of
            one minibatch, bytes of activations, bytes of parameters).
        output_bytes: [n + 1] bytes that a cut at this state hands on, one way.
        reachable: [n + 1, n + 1] bit matrix as integers: bit `a` of `reachable[b]` says that the search came to `b`
            through `a`.
    """

    name: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    down_sets: tuple[int, ...]
    compute_s: NDArray[np.float64]
    activation_bytes: NDArray[np.float64]
    parameter_bytes: NDArray[np.float64]
    output_bytes: NDArray[np.float64]
    reachable: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of states, the empty one not counted."""
        return len(self.down_sets) - 1

    @cached_property
    def before(self) -> NDArray[np.bool_]:
        """[n + 1, n + 1]: whether the search came from `a` to `b` (rows `a`, columns `b`)."""
        import numpy as np

        size = self.count + 1
        width = (size + 7) // 8
        packed = np.frombuffer(b"".join(bits.to_bytes(width, "little") for bits in self.reachable), np.uint8)
        return (
            np.unpackbits(packed.reshape(size, width), axis=1, count=size, bitorder="little").astype(bool).T
        )

    @cached_property
    def subset(self) -> NDArray[np.bool_]:
        """[n + 1, n + 1]: whether the down-set of `a` lies in that of `b` and is smaller: a stage can span a to b."""
        import numpy as np

        size = self.count + 1
        result = np.zeros((size, size), dtype=bool)
        for b, large in enumerate(self.down_sets):
            outside = ~large
            result[:b, b] = [not small & outside for small in self.down_sets[:b]]
        return result

    def members(self, start: int, end: int) -> list[str]:
        """Nodes of the stage that spans boundary `start` to `end`, in the graph's order; inputs go to the first."""
        bits = self.down_sets[end] & ~self.down_sets[start]
        inside = [name for index, name in enumerate(self.nodes) if bits >> index & 1]
        return [*self.inputs, *inside] if start == 0 else inside


def antichain_states(profile: PipeDreamProfile) -> StateSpace:
    """States of a profile by PipeDream's search.

    `Input*` sources are set aside and `__getitem__*` sinks are dropped. From the first source on, a state `A` is
    widened by those predecessors that still feed something outside; one member at a time moves on to a successor.

    Raises:
        InputError: nothing is left after inputs and unused outputs are taken out.
        LimitError: more than `MAX_STATES` states.
    """
    inputs, names, after = _stripped(profile)
    count = len(names)
    bit = [1 << i for i in range(count)]
    successors = [sum(bit[t] for t in set(targets)) for targets in after]
    descendants, ancestors = [0] * count, [0] * count
    order = _topological(after)
    for node in reversed(order):
        for target in after[node]:
            descendants[node] |= bit[target] | descendants[target]
    for node in order:
        for target in after[node]:
            ancestors[target] |= bit[node] | ancestors[node]
    # What a member's ancestors still feed elsewhere depends on that member alone.
    open_ancestors = [
        sum(bit[p] for p in _bits(ancestors[v]) if successors[p] & ~(ancestors[v] | bit[v]))
        for v in range(count)
    ]
    fed = sum(bit[t] for targets in after for t in set(targets)) if count else 0
    del fed
    has_input = {t for targets in after for t in targets}
    start = bit[next(i for i in range(count) if i not in has_input)]

    widened: dict[int, int] = {}
    edges: dict[int, list[int]] = {start: []}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        wide = state
        for member in _bits(state):
            wide |= open_ancestors[member]
        widened[state] = wide
        for old in _bits(wide):
            for new in after[old]:
                if bit[new] & state or descendants[new] & wide:
                    continue
                moved = wide & ~bit[old] | bit[new]
                following = sum(bit[x] for x in _bits(moved) if not descendants[x] & moved)
                edges[state].append(following)
                if following not in edges:
                    if len(edges) >= MAX_STATES:
                        raise LimitError(
                            f"{profile.name} has too many states",
                            expected=f"at most {MAX_STATES}",
                            got="more",
                            hint="plan at a coarser grain, blocks instead of layers",
                        )
                    edges[following] = []
                    queue.append(following)

    states = list(edges)
    position = {state: i for i, state in enumerate(states)}
    topological = [states[i] for i in _topological([[position[t] for t in edges[s]] for s in states])]
    return _space(profile, inputs, names, topological, edges, widened, ancestors)


def _space(
    profile: PipeDreamProfile,
    inputs: list[str],
    names: list[str],
    states: list[int],
    edges: dict[int, list[int]],
    widened: dict[int, int],
    ancestors: list[int],
) -> StateSpace:
    import numpy as np

    by_name = {node.id: node for node in profile.nodes}
    columns = np.array(
        [
            (n.forward_s + n.backward_s, n.activation_bytes, n.parameter_bytes)
            for n in (by_name[x] for x in names)
        ]
    )
    index = {state: i + 1 for i, state in enumerate(states)}
    down_sets, reachable = [0], [0] + [1] * len(states)
    output = np.zeros(len(states) + 1)
    sums = np.zeros((len(states) + 1, 3))
    for number, state in enumerate(states, start=1):
        wide = widened[state]
        down = wide
        for member in _bits(wide):
            down |= ancestors[member]
        down_sets.append(down)
        sums[number] = columns[list(_bits(down))].sum(axis=0)
        output[number] = columns[list(_bits(wide)), 1].sum()
        for target in edges[state]:
            reachable[index[target]] |= 1 << number | reachable[number]
    return StateSpace(
        profile.name,
        tuple(names),
        tuple(inputs),
        tuple(down_sets),
        sums[:, 0],
        sums[:, 1],
        sums[:, 2],
        output,
        tuple(reachable),
    )


def _stripped(profile: PipeDreamProfile) -> tuple[list[str], list[str], list[list[int]]]:
    """Inputs, remaining nodes, and the remaining nodes' successors (as indices, in the file's order)."""
    targets = {t for _, t in profile.edges}
    inputs = [n.id for n in profile.nodes if n.id not in targets and n.description.startswith("Input")]
    edges = [(s, t) for s, t in profile.edges if s not in inputs]
    sources = {s for s, _ in edges}
    unused = {
        n.id for n in profile.nodes if n.id not in sources and n.description.startswith("__getitem__")
    }
    names = [n.id for n in profile.nodes if n.id not in inputs and n.id not in unused]
    if not names:
        raise InputError(f"{profile.name} has nothing to plan", expected="a layer that is not an input")
    index = {name: i for i, name in enumerate(names)}
    after: list[list[int]] = [[] for _ in names]
    for source, target in edges:
        if target in index and source in index:
            after[index[source]].append(index[target])
    return inputs, names, after


def _topological(after: list[list[int]]) -> list[int]:
    """Reverse depth-first post-order from the first node on."""
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


def _bits(value: int) -> Iterator[int]:
    while value:
        low = value & -value
        yield low.bit_length() - 1
        value ^= low
