"""Sets that were observed to run: they fit in the device's memory, whatever is predicted, and so does every part of them,
and sets that differ in smaller batches or more frozen layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from models.features import Floats
from predictor.answering.describe import room_in_words
from predictor.examples.plausibility import MEMORY_MOST_OFF
from predictor.gaussian_process.confirmed_pairs import OFTEN
from predictor.gaussian_process.job_keys import unlimited_on_devices
from predictor.gaussian_process.observed_sets import hashes_of
from predictor.learning.evidence.observed import Observed
from predictor.learning.memory.sets_by_memory import SetsByMemory
from predictor.padding import equally_wide
from predictor.types import Prediction, PredictionArrays, Quantity
from profiling.devices import get_device
from profiling.devices.mig import leaves_slices_open

if TYPE_CHECKING:
    from predictor.examples.examples import Integers
    from predictor.gaussian_process.known_members import KnownMembers

# Largest set of which all parts are named: sixteen jobs have 65,535 parts, which took seconds at the next query, and 2,000
# sets of eight took 0.8 GB.
MOST_NAMED = 6
# Device, job, and how many of this job came before: a set contains the jobs of another if it contains all of these.
_Place = tuple[int, int, int]


class RanTogether:
    """Sets in which a job's step time was observed often enough that an implausible one would be believed, too.

    It counts whatever the SPECs stated of the jobs alone, in whichever sharing mode and with whichever `sm_share_ratio`.
    In sets of up to `MOST_NAMED`, jobs that need less by `memory_load` fit in their place. Nothing is said of sets under
    MIG, where each job has a slice of its own, nor of sets that would take several times the device's memory.

    Args:
        observed: the observed step times; only_ran: those that say nothing else.
        known: numbers the members.
        earlier: the same with fewer observations, which saves time and changes nothing.
    """

    def __init__(
        self, observed: Observed, only_ran: Observed, known: KnownMembers, earlier: RanTogether | None = None
    ) -> None:
        self._seen, self._known = (observed, only_ran), known
        # Not a chain of all earlier ones.
        self._earlier: RanTogether | None = (
            earlier if earlier is None or "_rooms" in vars(earlier) else earlier._earlier
        )

    @cached_property
    def _often(self) -> tuple[Integers, Floats]:
        """[R, M] members, by number, of sets that were observed often, -1 where there are fewer, and [R] the memory of
        their devices in bytes."""
        keys = [key for seen in self._seen for key in seen.keys]
        partners = equally_wide(*(seen.partners for seen in self._seen))
        own = np.concatenate([seen.own for seen in self._seen])
        numbers = np.concatenate([own[:, None], np.concatenate(partners)], 1)
        count = np.concatenate([seen.count for seen in self._seen])
        rows = np.flatnonzero(
            np.array([not leaves_slices_open(device, sharing) for device, sharing, *_ in keys], dtype=bool)
        )
        numbers, members = numbers[rows], self._known.members
        others = np.where(numbers[:, 1:] >= 0, members.unlimited[numbers[:, 1:]], -1)
        names = hashes_of(unlimited_on_devices(members, numbers[:, 0]), others)
        _, first, group = np.unique(names, return_index=True, return_inverse=True)
        first = np.sort(first[np.bincount(group, count[rows]) >= OFTEN])
        first = first[self._distinct(numbers[first])]
        return numbers[first], memory_of_devices([keys[row][0] for row in rows[first].tolist()])

    @cached_property
    def _rooms(self) -> tuple[SetsByMemory, Floats, dict[_Place, dict[int, float]]]:
        """The smaller of these sets and all parts of them, and the memory of their devices in bytes; and by place, the
        larger ones that have it, with that memory."""
        numbers, room = self._often
        earlier, self._earlier = self._earlier, None
        if earlier is not None and np.array_equal(numbers, earlier._often[0]):
            return earlier._rooms
        size, numbers = (numbers >= 0).sum(1), -np.sort(-numbers, axis=1)
        most = min(int(size.max(initial=0)), MOST_NAMED)
        parts, bytes_of = [np.zeros((0, most), np.int64)], [np.zeros(0)]
        for count in np.unique(size[size <= MOST_NAMED]).tolist():
            here = size == count
            for part in range(1, count + 1):
                for columns in combinations(range(count), part):
                    some = numbers[here][:, columns]
                    parts.append(np.pad(some, ((0, 0), (0, most - part)), constant_values=-1))
                    bytes_of.append(room[here])
        large, holders = size > MOST_NAMED, dict[_Place, dict[int, float]]()
        for number, (places, bytes_) in enumerate(
            zip(self._places(numbers[large]), room[large].tolist(), strict=True)
        ):
            for each in places:
                holders.setdefault(each, {})[number] = bytes_
        of_parts = np.concatenate(parts)
        distinct = self._distinct(of_parts)
        return SetsByMemory(self._known, of_parts[distinct]), np.concatenate(bytes_of)[distinct], holders

    def _distinct(self, numbers: Integers) -> Integers:
        """Rows of sets of members, by number [S, M], with those jobs in any order that none before them has."""
        if not len(numbers):
            return np.zeros(0, np.int64)
        jobs = np.where(numbers >= 0, self._known.members.unlimited[numbers], -1)
        return np.sort(np.unique(hashes_of(self._known.devices(numbers), jobs), return_index=True)[1])

    def _places(self, numbers: Integers) -> Iterator[list[_Place]]:
        """Those of every set of members, by number [S, M], -1 where there are fewer."""
        members = self._known.members
        devices, jobs = members.device[numbers.max(1)], np.where(numbers >= 0, members.unlimited[numbers], -1)
        for device, row in zip(devices.tolist(), jobs.tolist(), strict=True):
            counted = Counter(job for job in row if job >= 0)
            yield [(device, job, k) for job, count in counted.items() for k in range(count)]

    def room_of(self, numbers: Integers, memory_bytes: Floats) -> Floats:
        """[S] bytes of the device, NaN for sets of members, by number [S, M], for which none was observed to run.

        Args:
            numbers: -1 where there are fewer.
            memory_bytes: [S] predicted.
        """
        if not len(self._often[0]):
            return np.full(len(numbers), np.nan)
        sets, room, holders = self._rooms
        place = sets.first(numbers, self._known.devices(numbers))
        found, named = np.full(len(numbers), np.nan), place < len(room)
        found[named] = room[place[named]]
        if holders:
            rest = np.flatnonzero(~named)
            for row, places in zip(rest.tolist(), self._places(numbers[rest]), strict=True):
                having = [holders.get(each, {}) for each in places]
                if common := set(having[0]).intersection(*having[1:]):
                    found[row] = having[0][min(common)]
        return np.where(memory_bytes <= MEMORY_MOST_OFF * found, found, np.nan)

    def corrected_arrays(
        self, arrays: PredictionArrays, numbers: Integers, sharing: NDArray[np.str_]
    ) -> PredictionArrays:
        """Answers for sets of members, by number [S, M]; members of a set that ran take no more than the device has."""
        asked = np.flatnonzero(~arrays.fits)
        asked = asked[sharing[asked] != "mig"]
        if not len(asked):
            return arrays
        total = arrays.memory_bytes[asked].sum(1)
        room = self.room_of(numbers[asked], total)
        ran = ~np.isnan(room)
        asked, room, total = asked[ran], room[ran], total[ran]
        if not len(asked):
            return arrays
        memory, upper, fits = arrays.memory_bytes.copy(), arrays.memory_upper_bytes.copy(), arrays.fits.copy()
        memory[asked] *= np.minimum(room / total, 1.0)[:, None]
        upper[asked], fits[asked] = room, True
        return replace(arrays, memory_bytes=memory, memory_upper_bytes=upper, fits=fits)

    def corrected_prediction(self, prediction: Prediction, numbers: Sequence[int]) -> Prediction:
        """The same for one set, with intervals and reasons."""
        if prediction.fits or prediction.sharing == "mig":
            return prediction
        total = prediction.total_memory_bytes
        members_bytes = sum(m.memory_bytes.value for m in prediction.members)
        room = float(self.room_of(np.array([numbers]), np.array([members_bytes]))[0])
        if np.isnan(room):
            return prediction
        share, device = min(room / members_bytes, 1.0), get_device(prediction.device)
        was, now = (room_in_words(*of, device) for of in ((False, total.upper), (True, room)))
        how = self._in_words(numbers)
        return replace(
            prediction,
            members=tuple(
                structs.replace(m, memory_bytes=_within(m.memory_bytes, share, room))
                for m in prediction.members
            ),
            total_memory_bytes=_within(total, min(room / total.value, 1.0), room),
            fits=True,
            reasons=(
                *(now if words == was else words for words in prediction.reasons),
                f"{how} on {prediction.device}, although predicted not to fit",
            ),
        )

    def _in_words(self, numbers: Sequence[int]) -> str:
        how = "observed to run together" if len(numbers) > 1 else "observed to run"
        sets, asked = self._rooms[0], np.array([numbers])
        place = int(sets.first(asked, self._known.devices(asked))[0])
        if place == len(sets):  # a part of a large set
            return how
        ran = [number for number in sets.numbers[place].tolist() if number >= 0]
        if self._known.are_jobs(ran, numbers):
            return how
        jobs = sorted(str(self._known.key(number)[0].without_solo()) for number in ran)
        return f"{' and '.join(jobs)} {how}"


def _within(bytes_: Quantity, share: float, room: float) -> Quantity:
    value = bytes_.value * share
    return Quantity(value, min(bytes_.lower, value), min(bytes_.upper, room))


def memory_of_devices(names: Sequence[str]) -> Floats:
    """[D] bytes of devices, which may repeat."""
    known = {name: get_device(name).memory_bytes for name in set(names)}
    return np.array([known[name] for name in names], dtype=np.float64)
