"""Predicted times of sets of jobs on slices, relative to each job alone on the fastest whole card."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from predictor.types import Floats, SetPredictor
from profiling.devices import has_mig
from profiling.workload import Workload
from scheduling.core.set_cache import SetCache
from scheduling.slices.cluster import largest_slice
from scheduling.slices.placing import places_of


@dataclass(slots=True)
class SetTimes:
    """A belief's times, cached; several jobs share a slice under MPS.

    Attributes:
        cache: the belief's answers.
        cards: the types of cards.
    """

    cache: SetCache | None = None
    cards: tuple[str, ...] = ()
    _fastest: dict[Workload, float | None] = field(default_factory=dict)
    _ratios: dict[tuple[str, tuple[Workload, ...]], tuple[float, ...]] = field(default_factory=dict)

    def ask(self, belief: SetPredictor, cards: Sequence[str]) -> None:
        """Answer by this belief about cards of these types."""
        if self.cache is None:
            self.cache = SetCache.of(belief)
            self.cards = tuple(dict.fromkeys(cards))

    @property
    def known(self) -> SetCache:
        assert self.cache is not None, "ask first"
        return self.cache

    def number(self, workload: Workload) -> int:
        """Number of a workload, the same for equal ones."""
        return self.known.workload_id(workload)

    def fastest_s(self, workload: Workload) -> float | None:
        """Seconds per step alone on the fastest whole card, or on the fastest slice if it fits on none, as where
        whole cards were not measured; None if it fits nowhere."""
        if workload not in self._fastest:
            whole = [largest_slice(card) if has_mig(card) else card for card in self.cards]
            step_s = self._least_s(whole, workload)
            if step_s is None:
                step_s = self._least_s([d for card in self.cards for d, _ in places_of(card)], workload)
            self._fastest[workload] = step_s
        return self._fastest[workload]

    def _least_s(self, devices: Iterable[str], workload: Workload) -> float | None:
        answers = [self.known.answer(device, (workload,)) for device in dict.fromkeys(devices)]
        return min((a.step_time_s[0] for a in answers if a.fits), default=None)

    def ratios(self, device: str, workloads: tuple[Workload, ...]) -> tuple[float, ...]:
        """Time of each job of a set on a slice over that alone on the fastest whole card."""
        key = device, workloads
        if key not in self._ratios:
            steps = self.known.answer(device, workloads, _sharing(len(workloads))).step_time_s
            self._ratios[key] = tuple(
                step / (self.fastest_s(w) or step) for step, w in zip(steps, workloads, strict=True)
            )
        return self._ratios[key]

    def seconds(
        self, devices: Sequence[str], numbers: Sequence[int], left_s: Sequence[float], largest: int
    ) -> Floats:
        """Sum over a set's jobs of the seconds that they need on a slice.

        Args:
            numbers: [J] workload numbers.
            left_s: [J] seconds that each job needs alone on the fastest whole card.
            largest: maximum number of jobs of a set.

        Returns:
            [devices, 2^J] by bit mask of the jobs; infinite for the empty set and for sets that do not fit.
        """
        cache, jobs = self.known, len(numbers)
        workloads = [cache.workloads[number] for number in numbers]
        whole_s = [self.fastest_s(workload) or np.nan for workload in workloads]
        total = np.full((len(devices), 1 << jobs), np.inf)
        # Members of a row are in ascending order of their workloads' numbers.
        order = np.argsort(numbers, kind="stable")
        number, weight = np.array(numbers)[order], (np.array(left_s) / whole_s)[order]
        for size in range(1, min(largest, jobs) + 1):
            sets = _combinations(jobs, size)
            masks = (1 << order[sets]).sum(axis=1)
            ids = np.array([cache.device_id(device, _sharing(size)) for device in devices])
            members = np.tile(number[sets], (len(devices), 1))
            rows = cache.rows(np.repeat(ids, len(sets)), members, np.ones(members.shape, bool))
            steps, fits = cache.step_time_s[rows, :size], cache.fits[rows]
            needed = (steps * np.tile(weight[sets], (len(devices), 1))).sum(axis=1)
            fits &= np.isfinite(needed)
            total[:, masks] = np.where(fits, needed, np.inf).reshape(len(devices), len(sets))
        return total


def _sharing(jobs: int) -> str:
    return "mps" if jobs > 1 else "time-slice"


@lru_cache(maxsize=256)
def _combinations(jobs: int, size: int) -> NDArray[np.int64]:
    """[N, size] every set of `size` of the jobs, in ascending order."""
    return np.array(list(combinations(range(jobs), size)), np.int64)
