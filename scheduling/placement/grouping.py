"""Groups a snapshot's GPUs by state, updated incrementally from one snapshot to the next."""

from __future__ import annotations

from typing import Any

import numpy as np

from profiling.errors import InputError
from scheduling.core.set_cache import Ints, SetCache
from scheduling.core.snapshot import ClusterSnapshot, Gpu, Node, changed_nodes
from scheduling.placement.ranking import Candidates
from scheduling.placement.stages import Stages

_REBUILT_FROM = 0.25  # share of changed nodes above which everything is regrouped
State = tuple[str, str, Any]  # device, sharing mode, tenants


class GroupedGpus:
    """The distinct GPU states of a snapshot and which GPUs are in each.

    Args:
        snapshot: at least one GPU; raises `InputError` otherwise.
        cache: cache of the predictor, for the outcome of each state if no job joins it.

    Attributes:
        places: [G] every GPU with its node.
        state_of: [G] number of the state of each GPU of `places`.
        candidates: the S states; a state that no GPU is in any longer has no tenants.
        without: outcome of each state if no job joins it.
    """

    def __init__(self, snapshot: ClusterSnapshot, cache: SetCache) -> None:
        self.snapshot, self.cache = snapshot, cache
        by_object: dict[int, int] = {}
        self._numbers: dict[State, int] = {}
        states: list[Gpu] = []
        numbers: list[int] = []
        self.places: list[tuple[Node, Gpu]] = []
        self._first_of: list[int] = []  # of each node's GPUs
        for node in snapshot.nodes:
            self._first_of.append(len(numbers))
            for gpu in node.gpus:
                number = by_object.get(id(gpu))
                if number is None:
                    number = self._numbers.setdefault(_state(gpu), len(states))
                    if number == len(states):
                        states.append(gpu)
                    by_object[id(gpu)] = number
                self.places.append((node, gpu))
                numbers.append(number)
        if not numbers:
            raise InputError(
                "the cluster has no GPU",
                expected="at least one node with one GPU",
                got=f"{len(snapshot.nodes)} nodes",
                hint="Describe the cluster first: in cluster.yaml, or with PUT /v1/cluster",
            )
        self.state_of: Ints = np.array(numbers, np.int64)
        self._count_of: list[int] = np.bincount(self.state_of, minlength=len(states)).tolist()
        self._unused: list[int] = []  # numbers of states that no GPU is in
        self.candidates = Candidates.of(cache, states)
        self.without = self.candidates.as_is(cache)

    def follow(self, snapshot: ClusterSnapshot) -> bool:
        """Update to a later snapshot; returns False, and is unusable, if too much has changed."""
        if snapshot is self.snapshot:
            return True
        changed = changed_nodes(self.snapshot, snapshot)
        if changed is None or len(changed) > _REBUILT_FROM * len(snapshot.nodes) + 1:
            return False
        new: dict[int, Gpu] = {}
        for index in changed:
            node, first = snapshot.nodes[index], self._first_of[index]
            if len(node.gpus) != len(self.snapshot.nodes[index].gpus):
                return False
            for place, gpu in enumerate(node.gpus, first):
                before = self.places[place][1]
                self.places[place] = (node, gpu)
                if gpu is not before:
                    self._move(place, before, gpu, new)
        self.snapshot = snapshot
        if new:
            self._write(new)
        self._neutralize()
        return True

    def _move(self, place: int, before: Gpu, gpu: Gpu, new: dict[int, Gpu]) -> None:
        """Move the GPU at `place` into its state; a new state is added to `new`."""
        old = int(self.state_of[place])
        state = _state(gpu)
        number = self._numbers.get(state)
        if number == old:
            return
        self._count_of[old] -= 1
        if not self._count_of[old]:
            del self._numbers[_state(before)]
            self._unused.append(old)
            new.pop(old, None)
        if number is None:
            if self._unused:
                number = self._unused.pop()
            else:
                number = len(self._count_of)
                self._count_of.append(0)
            self._numbers[state], new[number] = number, gpu
        self._count_of[number] += 1
        self.state_of[place] = number

    def _neutralize(self) -> None:
        """A state without GPUs must not be waited for, and its device must not count as present."""
        unused = [number for number in self._unused if number < len(self.candidates.devices)]
        if unused:
            self.candidates.present[unused] = False
            self.candidates.devices[unused] = self.candidates.devices[self.state_of[0]]

    def _write(self, new: dict[int, Gpu]) -> None:
        """Write the states `new` (by number) into the arrays."""
        numbers = np.array(list(new), np.int64)
        rows = Candidates.of(self.cache, list(new.values()))
        outcome = rows.as_is(self.cache)
        size = len(self._count_of)
        c, w = self.candidates, self.without
        width = max(c.members.shape[1], rows.members.shape[1])

        def put(old: Any, values: Any, fill: Any) -> Any:
            """`old` with `values` at `numbers`, extended if needed."""
            shape = (size, width) if old.ndim == 2 else (size,)
            if old.shape != shape:
                grown = np.full(shape, fill, old.dtype)
                grown[tuple(map(slice, old.shape))] = old
                old = grown
            if old.ndim == 2:
                old[numbers] = fill
                old[numbers, : values.shape[1]] = values
            else:
                old[numbers] = values
            return old

        self.candidates = Candidates(
            put(c.devices, rows.devices, 0),
            put(c.members, rows.members, 0),
            put(c.iterations, rows.iterations, 0.0),
            put(c.present, rows.present, False),
            put(c.budgets, rows.budgets, np.nan),
        )
        self.without = Stages(
            put(w.finish_s, outcome.finish_s, 0.0),
            put(w.interference, outcome.interference, 0.0),
            put(w.slowdown, outcome.slowdown, 1.0),
            put(w.fits, outcome.fits, True),
        )


def _state(gpu: Gpu) -> State:
    return gpu.device, gpu.sharing, gpu.tenants
