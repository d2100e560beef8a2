"""Sets of jobs of the same networks, ordered by what orders their memory: batch sizes, frozen layers and the like."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from models.cost.order import LOAD_WIDTH, memory_load
from models.features import Floats
from predictor.gaussian_process.job_keys import places_among
from predictor.gaussian_process.observed_sets import Names, hashes_of

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
        self._load = self._loads(numbers)
        self._names, start = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        kept: list[Integers] = []
        if len(numbers):
            names = self._named(numbers, known.devices(numbers))
            order = np.argsort(names, kind="stable")
            self._names, start = np.unique(names[order], return_index=True)
            kept = [self._largest(places) for places in np.split(order, start[1:])]
        # Places of those that no other of their name makes redundant, name by name.
        self._kept = np.concatenate([np.zeros(0, np.int64), *kept])
        self._start = np.cumsum([0, *map(len, kept)])

    def __len__(self) -> int:
        return len(self.numbers)

    def first(self, numbers: Integers, devices: Integers) -> Integers:
        """[S] place of the first such set of each set of members, by number [S, M], were they on devices [S], by number;
        K if there is none."""
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
            place = self._kept[start[here] + k]
            enough = (self._load[place, :width] >= load[here, :width]).all((1, 2))
            here, place = some[here[enough]], place[enough]
            found[here] = np.minimum(found[here], place)
        return found

    def _named(self, numbers: Integers, devices: Integers) -> Names:
        """[S] hashes of devices and networks."""
        return hashes_of(devices, np.where(numbers >= 0, self._known.network[numbers], -1))

    def _loads(self, numbers: Integers) -> Floats:
        """[S, M, LOAD_WIDTH] of members, those of sets of one name in one order; 0 where there are fewer."""
        there = numbers >= 0
        network = np.where(there, self._known.network[numbers], -1)
        load = np.where(there[:, :, None], memory_load(self._known.load[numbers][:, :, :LOAD_WIDTH]), 0.0)
        order = np.lexsort((*np.moveaxis(load, 2, 0)[::-1], -network), axis=1)
        return np.asarray(self._sign * np.take_along_axis(load, order[:, :, None], 1))

    def _largest(self, places: Integers) -> Integers:
        """Those of some sets of one name, by place, to whose loads no other's come up."""
        kept = []
        while len(places) > 1:
            load = self._load[places]
            most = load[load.sum((1, 2)).argmax()]
            kept.append(int(places[(load == most).all((1, 2))].min()))
            places = places[~(load <= most).all((1, 2))]
        return np.array([*kept, *places.tolist()], dtype=np.int64)
