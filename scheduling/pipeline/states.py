"""Where a model can be cut: the states between the stages of a pipeline, and what has been computed at each.

A state of a DAG is an antichain; its down-set is what has been computed when the state is reached. A cut at
state `a` and one at a later state `b` enclose a stage of the nodes that are in the down-set of `b` but not of
`a`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING

from profiling.errors import LimitError
from scheduling.pipeline.layers import Layers, topological
from scheduling.pipeline.layers import bits as _bits

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from profiling.capture.pipedream_profile import PipeDreamProfile

MAX_STATES = 6000
"""Layers of a chain, and states that `--compat` takes; a larger graph has to be coarsened first."""

MAX_BRANCHING_STATES = 1500
"""States of a graph with branches: the search over those has a matrix for every number of workers."""


@dataclass(frozen=True)
class StateSpace:
    """States in topological order, preceded by an empty one: `n` states are boundaries 0..n.

    Attributes:
        nodes: names of the nodes behind each bit of `down_sets`.
        inputs: names of input nodes, which always belong to the first stage and cost nothing.
        down_sets: [n + 1] bit sets over `nodes`; the first is empty.
        compute_s, activation_bytes, parameter_bytes: [n + 1] sums over each down-set (forward and backward
            seconds of one minibatch, bytes of activations, bytes of parameters).
        output_bytes: [n + 1] bytes that cross a cut at this state, one way: outputs that later layers read, and
            those of the model so far. As published, also some that only earlier layers read.
        forward_s: [n + 1] the forward part of `compute_s`.
        search: `all cuts`, `branches merged`, `execution order`, `blocks`, `modules` or `operators`: how fine
            the cuts are.
        fixed_bytes: [n + 1] bytes over each down-set that a worker holds once: gradients, optimiser state.
        inputs_only: a minibatch in flight keeps only its stage's input; the rest is recomputed in the
            backward pass.
        split_points: [n] the module that each node of a chain begins with, empty if none; () for profiles,
            whose nodes are not modules.
        reachable: [n + 1, n + 1] bit matrix as integers: bit `a` of `reachable[b]` states that the search
            reached `b` through `a`.
    """

    name: str
    nodes: tuple[tuple[str, ...], ...]
    inputs: tuple[str, ...]
    down_sets: tuple[int, ...]
    compute_s: NDArray[np.float64]
    activation_bytes: NDArray[np.float64]
    parameter_bytes: NDArray[np.float64]
    output_bytes: NDArray[np.float64]
    forward_s: NDArray[np.float64]
    reachable: tuple[int, ...]
    search: str = "all cuts"
    fixed_bytes: NDArray[np.float64] | None = None
    inputs_only: bool = False
    split_points: tuple[str, ...] = ()

    def split_spec(self, boundaries: Sequence[int]) -> dict[str, str] | None:
        """Module → name of the `SplitPoint` of `torch.distributed.pipelining`, for stages that begin here.

        None if a stage does not begin with a module.
        """
        if not self.split_points:
            return None
        modules = [self.split_points[boundary] for boundary in boundaries]
        return dict.fromkeys(modules, "BEGINNING") if all(modules) else None

    def memory_bytes(
        self, start: NDArray[np.intp] | int, end: NDArray[np.intp] | int, versions: int
    ) -> NDArray[np.float64]:
        """Bytes of a stage's worker with `versions` minibatches in flight, each with its own weights."""
        activations = self.activation_bytes[end] - self.activation_bytes[start]
        parameters = self.parameter_bytes[end] - self.parameter_bytes[start]
        fixed = 0.0 if self.fixed_bytes is None else self.fixed_bytes[end] - self.fixed_bytes[start]
        if self.inputs_only:
            return versions * (self.output_bytes[start] + parameters) + activations + fixed
        return versions * (activations + parameters) + fixed

    @property
    def count(self) -> int:
        """Number of states without the empty one."""
        return len(self.down_sets) - 1

    @cached_property
    def is_chain(self) -> bool:
        """Whether every state contains the previous one, so that a stage may span any two."""
        return all(
            not small & ~large for small, large in zip(self.down_sets, self.down_sets[1:], strict=False)
        )

    @cached_property
    def before(self) -> NDArray[np.bool_]:
        """[n + 1, n + 1]: whether the search led from `a` to `b` (rows `a`, columns `b`)."""
        import numpy as np

        size = self.count + 1
        width = (size + 7) // 8
        packed = np.frombuffer(b"".join(bits.to_bytes(width, "little") for bits in self.reachable), np.uint8)
        return (
            np.unpackbits(packed.reshape(size, width), axis=1, count=size, bitorder="little").astype(bool).T
        )

    @cached_property
    def subset(self) -> NDArray[np.bool_]:
        """[n + 1, n + 1]: whether the down-set of `a` is a proper subset of that of `b`.

        If so, a stage can span a to b.
        """
        import numpy as np

        size = self.count + 1
        result = np.zeros((size, size), dtype=bool)
        for b, large in enumerate(self.down_sets):
            outside = ~large
            result[:b, b] = [not small & outside for small in self.down_sets[:b]]
        return result

    def members(self, start: int, end: int) -> list[str]:
        """Nodes of the stage from boundary `start` to `end`, in the graph's order.

        Inputs belong to the first stage.
        """
        inner = self.down_sets[end] & ~self.down_sets[start]
        inside = [name for index, names in enumerate(self.nodes) if inner >> index & 1 for name in names]
        return [*self.inputs, *inside] if start == 0 else inside


def antichain_states(profile: PipeDreamProfile, *, as_published: bool = False) -> StateSpace:
    """States of a profile by PipeDream's search.

    `Input*` sources are set aside and `__getitem__*` sinks are dropped. Starting from the first source, a
    state `A` is augmented by those predecessors that still feed something outside; then one member at a time
    advances to a successor. If this gives more than `MAX_BRANCHING_STATES` states that are not a chain,
    chains inside branches are merged first; if there are still too many, the cuts are those of one execution
    order, as many as there are layers.

    `as_published` starts from the first source alone if there are several (the default starts before them
    all), counts only the last activation of a merged chain, sends some outputs past all their readers, and allows
    `MAX_STATES`.

    Raises:
        InputError: nothing is left without inputs and unused outputs.
        LimitError: more than `MAX_STATES` layers.
    """
    layers = Layers.from_profile(profile)
    if not as_published:
        layers = layers.rooted()
    limit = MAX_STATES if as_published or layers.is_chain else MAX_BRANCHING_STATES
    try:
        return _search(layers, limit, as_published)
    except LimitError:
        pass
    try:
        merged = layers.branches_merged(as_published)
        return replace(_search(merged, limit, as_published), search="branches merged")
    except LimitError:
        return prefix_states(layers)


def prefix_states(layers: Layers) -> StateSpace:
    """States that are prefixes of the layers' order: layer `i` and all before it."""
    count = len(layers.after)
    if count > MAX_STATES:
        raise too_many(layers.name)
    prefixes = [(2 << i) - 1 for i in range(count)]
    # A layer's output crosses every cut until its last successor has been computed.
    last_use = [max(after, default=count) for after in layers.after]
    open_until: dict[int, int] = {}
    widened, waiting = {}, 0
    for i, prefix in enumerate(prefixes):
        waiting = (waiting | 1 << i) & ~open_until.pop(i, 0)
        open_until[last_use[i]] = open_until.get(last_use[i], 0) | 1 << i
        widened[prefix] = waiting
    edges = dict(zip(prefixes, [[p] for p in prefixes[1:]] + [[]], strict=True))
    return _space(layers, prefixes, edges, widened, down_sets=prefixes, search="execution order")


def too_many(name: str, limit: int = MAX_STATES) -> LimitError:
    return LimitError(
        f"{name} has too many possible cuts",
        expected=f"at most {limit}",
        hint="plan with a coarser granularity, blocks instead of layers",
    )


def _search(layers: Layers, limit: int, as_published: bool) -> StateSpace:
    after, ancestors, descendants = layers.after, layers.ancestors, layers.descendants
    bit = [1 << i for i in range(len(after))]
    # What a member's ancestors still feed elsewhere depends on that member alone. An ancestor with a single
    # successor leads to the member only through that successor.
    forks = sum(bit[v] for v in range(len(after)) if len(after[v]) > 1)

    @cache
    def open_ancestors(v: int) -> int:
        inside = ancestors[v] | bit[v]
        return sum(bit[p] for p in _bits(ancestors[v] & forks) if layers.successors[p] & ~inside)

    start = bit[layers.source]
    widened: dict[int, int] = {}
    edges: dict[int, list[int]] = {start: []}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        wide = state
        for member in _bits(state):
            wide |= open_ancestors(member)
        widened[state] = wide
        for old in _bits(wide):
            for new in after[old]:
                if bit[new] & state or descendants[new] & wide:
                    continue
                moved = wide & ~bit[old] | bit[new]
                following = sum(bit[x] for x in _bits(moved) if not descendants[x] & moved)
                edges[state].append(following)
                if following not in edges:
                    if len(edges) >= limit:
                        raise too_many(layers.name, limit)
                    edges[following] = []
                    queue.append(following)

    states = list(edges)
    position = {state: i for i, state in enumerate(states)}
    order = topological([[position[t] for t in edges[s]] for s in states])
    return _space(layers, [states[i] for i in order], edges, widened, as_published=as_published)


def _space(
    layers: Layers,
    states: list[int],
    edges: dict[int, list[int]],
    widened: dict[int, int],
    down_sets: list[int] | None = None,
    search: str = "all cuts",
    as_published: bool = False,
) -> StateSpace:
    import numpy as np

    if down_sets is None:
        down_sets = []
        for state in states:
            down = widened[state]
            for member in _bits(widened[state]):
                down |= layers.ancestors[member]
            down_sets.append(down)
    index = {state: i + 1 for i, state in enumerate(states)}
    reachable = [0] + [1] * len(states)
    columns = np.array(layers.columns)
    for number, state in enumerate(states, start=1):
        for target in edges[state]:
            reachable[index[target]] |= 1 << number | reachable[number]
    sums = np.concatenate([np.zeros((1, 4)), _sums(down_sets, columns[:, :4])])
    sent = [widened[state] for state in states]
    if not as_published:
        sent = [
            sum(1 << i for i in _bits(wide) if not layers.after[i] or layers.successors[i] & ~down)
            for wide, down in zip(sent, down_sets, strict=True)
        ]
    output = np.concatenate([[0.0], _sums(sent, columns[:, 4:])[:, 0]])
    return StateSpace(
        layers.name,
        layers.members,
        layers.inputs,
        (0, *down_sets),
        sums[:, 0],
        sums[:, 1],
        sums[:, 2],
        output,
        sums[:, 3],
        tuple(reachable),
        search,
    )


def _sums(bit_sets: list[int], columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """[sets, columns] sums over the members of each set, extended from the previous set if that is a
    subset."""
    import numpy as np

    result = np.zeros((len(bit_sets), columns.shape[1]))
    before, total = 0, np.zeros(columns.shape[1])
    for number, members in enumerate(bit_sets):
        if before & ~members:
            before, total = 0, np.zeros(columns.shape[1])
        total = total + columns[list(_bits(members & ~before))].sum(axis=0)
        before = members
        result[number] = total
    return result
