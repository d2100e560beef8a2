"""Sets of jobs of the same networks, ordered by what orders their memory: batch sizes, frozen layers and the like."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from models.cost.order import LOAD_WIDTH, memory_load
from models.features import Floats
from predictor.gaussian_process.job_keys import places_among
from predictor.gaussian_process.observed_sets import Names, hashes_of
from predictor.types import Bools

if TYPE_CHECKING:
    from predictor.examples.examples import Integers
    from predictor.gaussian_process.known_members import KnownMembers


class SetsByMemory:
    """Finds, for a set, one of K others on its device that needs no less memory, or with `least` no more.

    Jobs of one network are compared in the order of their batch sizes, so of sets with several that differ in further
    options, too, some that could be compared are not.

    Args:
        known: numbers the members.
        numbers: [K, M] members, by number, -1 where there are fewer; kept as an attribute.
        least: whether to find sets that need no more memory instead of no less.
    """

    def __init__(self, known: KnownMembers, numbers: Integers, *, least: bool = False) -> None:
        self._known, self.numbers, self._sign = known, numbers, -1.0 if least else 1.0
        devices = known.devices(numbers) if len(numbers) else np.zeros(0, np.int64)
        self._names, name = np.unique(self._named(numbers, devices), return_inverse=True)
        load = self._loads(numbers)
        # Places of those that no other of their name makes redundant, name by name.
        self._kept = _largest(load, name)
        self._start = np.searchsorted(name[self._kept], np.arange(len(self._names) + 1))
        self._load = load[self._kept]

    def __len__(self) -> int:
        return len(self.numbers)

    def first(self, numbers: Integers, devices: Integers) -> Integers:
        """[S] place of one such set for each set of members, by number [S, M], were they on devices [S], by number; K if
        there is none. It is the first of those that need the most memory, or the least."""
        found = np.full(len(numbers), len(self))
        name = places_among(self._names, self._named(numbers, devices))
        some = np.flatnonzero(name >= 0)
        if not len(some):
            return found
        load = self._loads(numbers[some])
        width = min(load.shape[1], self._load.shape[1])
        start, stop = self._start[name[some]], self._start[name[some] + 1]
        for k in range(int((stop - start).max())):
            here = np.flatnonzero(start + k < stop)
            kept = start[here] + k
            enough = (self._load[kept, :width] >= load[here, :width]).all((1, 2))
            here, place = some[here[enough]], self._kept[kept[enough]]
            found[here] = np.minimum(found[here], place)
        return found

    def are_in(self, numbers: Integers, devices: Integers, place: int) -> Bools:
        """[S] whether sets of members, by number [S, M], contain one for which that at `place` stands, as `first` would
        find it, were they on devices [S], by number."""
        one = self.numbers[place : place + 1]
        networks, load = self._ordered(numbers)
        start, result = np.zeros(len(numbers), np.int64), devices == self._known.devices(one)[0]
        for network, most in zip(*(each[0] for each in self._ordered(one)), strict=True):
            if network >= 0:
                after = np.arange(numbers.shape[1]) >= start[:, None]
                stands = after & (networks == network) & (load <= most).all(2)
                start, result = stands.argmax(1) + 1, result & stands.any(1)
        return np.asarray(result)

    def _named(self, numbers: Integers, devices: Integers) -> Names:
        """[S] hashes of devices and networks."""
        return hashes_of(devices, np.where(numbers >= 0, self._known.network[numbers], -1))

    def _loads(self, numbers: Integers) -> Floats:
        """[S, M, LOAD_WIDTH] of members, those of sets of one name in one order; 0 where there are fewer."""
        return self._ordered(numbers)[1]

    def _ordered(self, numbers: Integers) -> tuple[Integers, Floats]:
        """[S, M] networks of members by number, -1 where there are fewer, and their loads [S, M, LOAD_WIDTH], set by set in
        the order of both."""
        members, place = np.unique(numbers, return_inverse=True)
        there = members >= 0
        network = np.where(there, self._known.network[members], -1)
        load = np.where(there[:, None], memory_load(self._known.load[members][:, :LOAD_WIDTH]), 0.0)
        order = np.lexsort((*load.T[::-1], -network))
        rank = np.sort(np.argsort(order)[place].reshape(numbers.shape), axis=1)
        return network[order][rank], self._sign * load[order][rank]


def _largest(load: Floats, name: Integers) -> Integers:
    """Places, name by name, of those of K sets by name [K] to whose loads [K, M, L] no other's of their name come up."""
    left, kept = np.lexsort((-load.sum((1, 2)), name)), [np.zeros(0, np.int64)]
    while len(left):
        is_first = np.diff(name[left], prepend=-1) > 0
        first = left[is_first]
        kept.append(first)
        left = left[~(load[left] <= load[first[np.cumsum(is_first) - 1]]).all((1, 2))]
    places = np.concatenate(kept)
    return places[np.argsort(name[places], kind="stable")]
