"""Sets that ran out of memory: they do not fit, whatever is predicted, and neither does a set that contains one, or one that
differs in larger batches or fewer frozen layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from predictor.answering.describe import room_in_words
from predictor.gaussian_process.job_keys import JOBS, places_among
from predictor.learning.evidence.observed import Observed
from predictor.learning.memory.ran_together import MOST_NAMED, RanTogether, memory_of_devices
from predictor.learning.memory.sets_by_memory import SetsByMemory
from predictor.padding import padded
from predictor.types import Prediction, PredictionArrays, Quantity
from profiling.devices import get_device, split_device

if TYPE_CHECKING:
    from predictor.examples.examples import Integers
    from predictor.gaussian_process.known_members import KnownMembers


class RanOut:
    """Answers of sets with what was reported of their memory.

    A set that was also observed to run often fits: what ran out of memory was one of its runs. Neither the sharing mode
    nor `sm_share_ratio` makes a difference. What ran out of a card's memory, or of a slice's, does not fit on slices of
    that card with no more. Jobs that need more by `memory_load` stand for those that ran out of it. Nothing is said of
    whole cards under MIG, where each job has memory of its own, but of jobs that ran out of a card's memory alone.

    Args:
        reported: the sets that ran out of memory.
        known: numbers the members.
        ran: sets that fit because they ran.
    """

    def __init__(self, reported: Observed, known: KnownMembers, ran: RanTogether) -> None:
        self.ran, self._reported, self._known = ran, reported, known

    @cached_property
    def _numbers(self) -> tuple[Integers, Integers]:
        """[K] rows of what was reported, without sets observed to run often, and [K, M] their members, by number."""
        reported = self._reported
        numbers = np.concatenate([reported.own[:, None], reported.partners], 1)
        rows = np.flatnonzero(np.isnan(self.ran.room_of(numbers, np.zeros(len(numbers)))))
        return rows, numbers[rows]

    @cached_property
    def _sets(self) -> SetsByMemory:
        """These sets, to find one that needs no more memory than another."""
        return SetsByMemory(self._known, self._numbers[1], least=True)

    @cached_property
    def _networks(self) -> Integers:
        """The networks of all these sets on their devices, as `_networks_on` numbers them, ascending."""
        numbers = self._numbers[1]
        networks = np.unique(self._networks_on(numbers, self._known.devices(numbers)))
        return networks[networks >= 0]

    @cached_property
    def _sizes(self) -> list[int]:
        return np.unique((self._numbers[1] >= 0).sum(1)).tolist()

    @cached_property
    def _reported_devices(self) -> dict[str, int]:
        """The numbers of the devices with reports."""
        numbers = self._known.members.device[self._reported.own].tolist()
        return {key[0]: number for key, number in zip(self._reported.keys, numbers, strict=True)}

    def _networks_on(self, numbers: Integers, devices: Integers) -> Integers:
        """[S, M] a device [S] and the network of each member, by number, -1 where there is none."""
        return np.where(numbers >= 0, devices[:, None] * JOBS + self._known.network[numbers], -1)

    def _contained(self, numbers: Integers, sharing: NDArray[np.str_]) -> Integers:
        """[S] row of the first set that ran out of memory in each set of members, by number [S, M]; -1 if there is none."""
        rows, devices = self._numbers[0], self._known.devices(numbers)
        found = self._first(numbers, devices)
        for device, first in zip(*np.unique(devices, return_index=True), strict=True):
            name, here = self._known.key(int(numbers[first].max()))[1], np.flatnonzero(devices == device)
            cut = here[sharing[here] == "mig"] if split_device(name)[1] is None else here[:0]
            if len(cut):
                found[cut] = self._first(numbers[cut], devices[cut], alone=True)
            for larger in _larger(name, self._reported_devices):
                there = np.full(len(here), self._reported_devices[larger])
                found[here] = np.minimum(found[here], self._first(numbers[here], there))
        held, result = np.flatnonzero(found < len(rows)), np.full(len(numbers), -1)
        if not len(held):
            return result
        ran = ~np.isnan(self.ran.room_of(numbers[held], np.zeros(len(held))))
        result[held[~ran]] = rows[found[held[~ran]]]
        return result

    def _first(self, numbers: Integers, devices: Integers, alone: bool = False) -> Integers:
        """[S] place of the first of K sets that is in each set of members, by number [S, M], were they on other devices
        [S], by number; K if there is none. With `alone`, of sets of one job only."""
        width, found = numbers.shape[1], np.full(len(numbers), len(self._numbers[0]))
        networks = self._networks_on(numbers, devices)
        some = np.flatnonzero((places_among(self._networks, networks) >= 0).any(1))
        sizes = [size for size in self._sizes if size == 1 or not alone]
        if width > MOST_NAMED:
            for k in reversed(range(len(self._numbers[0]))):
                if (self._numbers[1][k] >= 0).sum() in sizes:
                    found[some[self._sets.are_in(numbers[some], devices[some], k)]] = k
            return found
        for size in sizes if len(some) else ():
            columns = np.array(list(combinations(range(width), size)), np.int64).reshape(-1, size)
            parts = numbers[some][:, columns].reshape(-1, size)
            place = self._sets.first(parts, np.repeat(devices[some], len(columns)))
            found[some] = np.minimum(
                found[some], place.reshape(len(some), -1).min(1, initial=len(self._sets))
            )
        return found

    def corrected_arrays(
        self, arrays: PredictionArrays, numbers: Integers, sharing: NDArray[np.str_]
    ) -> PredictionArrays:
        """Answers for sets of members, by number [S, M]; a set that does not fit takes at least what the device has."""
        arrays = self.ran.corrected_arrays(arrays, numbers, sharing)
        if not len(self._reported):
            return arrays
        asked = np.flatnonzero(arrays.fits)
        row = self._contained(numbers[asked], sharing[asked])
        asked, row = asked[row >= 0], row[row >= 0]
        if not len(asked):
            return arrays
        room = memory_of_devices([self._known.key(number)[1] for number in numbers[asked].max(1).tolist()])
        memory, upper, fits = arrays.memory_bytes.copy(), arrays.memory_upper_bytes.copy(), arrays.fits.copy()
        memory[asked] *= np.maximum(room / memory[asked].sum(1), 1.0)[:, None]
        upper[asked], fits[asked] = np.maximum(upper[asked], room), False
        return replace(arrays, memory_bytes=memory, memory_upper_bytes=upper, fits=fits)

    def corrected_predictions(
        self, predictions: Sequence[Prediction], numbers: Sequence[Sequence[int]]
    ) -> list[Prediction]:
        """The same with intervals and reasons, for sets of members, by number."""
        result = list(map(self.ran.corrected_prediction, predictions, numbers))
        asked = [k for k, prediction in enumerate(result) if prediction.fits]
        if not len(self._reported) or not asked:
            return result
        members = padded([numbers[k] for k in asked])
        row = self._contained(members, np.array([result[k].sharing for k in asked]))
        for place in np.flatnonzero(row >= 0).tolist():
            k = asked[place]
            result[k] = self._ran_out(result[k], int(row[place]), numbers[k])
        return result

    def _ran_out(self, prediction: Prediction, row: int, numbers: Sequence[int]) -> Prediction:
        """The prediction of a set of members, by number, for which a reported one stands."""
        device, total = get_device(prediction.device), prediction.total_memory_bytes
        room = float(device.memory_bytes)
        share = max(room / sum(m.memory_bytes.value for m in prediction.members), 1.0)
        # Of a whole card under MIG, the slices that it was given.
        slices = (reason for reason in prediction.reasons if reason.startswith("fits MIG "))
        was = next(slices, room_in_words(True, total.upper, device))
        how = f"{self._in_words(row, numbers)} on {self._reported.keys[row][0]}"
        expected = was.replace("fits: ", "to take ", 1).replace("fits MIG", "to fit MIG", 1)
        now = f"does not fit: {how}, although predicted {expected}"
        return replace(
            prediction,
            members=tuple(
                structs.replace(m, memory_bytes=_at_least(m.memory_bytes, m.memory_bytes.value * share))
                for m in prediction.members
            ),
            total_memory_bytes=_at_least(total, max(total.value, room)),
            fits=False,
            reasons=(now, *(reason for reason in prediction.reasons if reason != was)),
        )

    def _in_words(self, row: int, numbers: Sequence[int]) -> str:
        reported = self._reported
        jobs = np.append(reported.own[row], reported.partners[row])
        jobs = jobs[jobs >= 0]
        how = "ran out of memory" + (" together" if len(jobs) > 1 else "")
        if self._known.are_jobs(jobs, numbers):
            return how
        _, _, own, others = reported.keys[row]
        return f"{' and '.join(map(str, (own, *others)))} {how}"


def _larger(device: str, among: Iterable[str]) -> list[str]:
    """Those of some devices that a slice is a part of, or slices of the same card with at least its memory."""
    card, part = split_device(device)
    if part is None:
        return []
    room = get_device(device).memory_bytes
    others = (name for name in among if name != device and split_device(name)[0] == card)
    return [name for name in others if get_device(name).memory_bytes >= room]


def _at_least(bytes_: Quantity, value: float) -> Quantity:
    return Quantity(value, bytes_.lower, max(bytes_.upper, value))
