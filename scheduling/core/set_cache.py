"""Cached predictions of co-location sets, so that a decision over thousands of GPUs is one batched call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from predictor.types import Floats, PredictionArrays, SetPredictor
from profiling.devices import runs_on
from profiling.devices.mig import check_slices
from profiling.errors import InputError, TooSlowError
from profiling.workload import ColocationSet, Workload
from scheduling.core.limits import check_predictions

Ints = NDArray[np.int64]
Keys = NDArray[np.uint64]

# Step time of a job that cannot run at all; finite, so that no arithmetic on it is undefined.
_NEVER_S = 1e9
# Sets predicted in one call; a predictor whose caller has left can stop between two.
_TOGETHER = 1024
_WIDTH = 4  # initial number of members per row; grows for larger sets


class SetAnswer(NamedTuple):
    """The prediction for one set; per member in the queried order.

    Attributes:
        step_time_s: seconds per step of each in the set.
        slowdown: of each member, at least 1.
        memory_upper_bytes: upper bound of the set's memory.
        fits: whether that is within the device's.
    """

    step_time_s: tuple[float, ...]
    slowdown: tuple[float, ...]
    memory_upper_bytes: float
    fits: bool


class SetCache:
    """Caches the predictor's answer for every set, by interned devices and workloads.

    A set's key is the sum of one random 64-bit number per member and one for its device: it is independent of
    the members' order, and a departure is a subtraction. Keys are in an open-addressing table, so that a
    batch of sets is looked up without a Python loop. A row's columns are the set's members by ascending
    workload number.

    The cache is cleared when it would exceed `limit` sets; a single call may exceed it. The probability that any two of a million sets
    collide is below 1e-7. Not safe for concurrent calls.

    Attributes:
        revision: number of times that the answers changed; a cache that was full does not count.
        step_time_s, slowdown, contention: [K, M] of the sets known so far. Contention is kappa of the
            multi-stage quantification: the mean over memory bandwidth, compute and PCIe of solo demand over
            co-located share.
        worst_slowdown: [K] the largest of a set's members; memory_upper_bytes: [K]; fits: [K].
        too_slow: (device type, workload) whose steps would take too long (`TooSlowError`); no set with one fits.
    """

    def __init__(self, predictor: SetPredictor, limit: int = 1_000_000) -> None:
        self.predictor = predictor
        self.limit = limit
        self.revision = 0
        self._random = np.random.default_rng(0x5E7)
        self.workloads: list[Workload] = []
        self.devices: list[tuple[str, str]] = []
        self._workload_ids: dict[Workload, int] = {}
        self._device_ids: dict[tuple[str, str], int] = {}
        self._workload_keys: Keys = np.zeros(0, np.uint64)
        self._device_keys: Keys = np.zeros(0, np.uint64)
        self._clear()

    @classmethod
    def of(cls, predictor: SetPredictor | SetCache) -> SetCache:
        """`predictor` itself if it is a cache, else a new cache over it."""
        return predictor if isinstance(predictor, SetCache) else cls(predictor)

    def _clear(self, width: int = _WIDTH) -> None:
        self.step_time_s: Floats = np.ones((0, width))
        self.slowdown: Floats = np.ones((0, width))
        self.contention: Floats = np.ones((0, width))
        self.worst_slowdown: Floats = np.ones(0)
        self.memory_upper_bytes: Floats = np.zeros(0)
        self.fits: NDArray[np.bool_] = np.zeros(0, bool)
        self._keys: Keys = np.zeros(0, np.uint64)
        self._count = 0
        self.too_slow: set[tuple[str, Workload]] = set()
        self._table_keys: Keys = np.zeros(1 << 12, np.uint64)
        self._table_rows: Ints = np.full(1 << 12, -1, np.int64)

    def forget(self) -> None:
        """Clear all answers because the predictor has learned. Numbers of workloads and devices stay."""
        self._clear(self.step_time_s.shape[1])
        self.revision += 1

    def workload_id(self, workload: Workload) -> int:
        """Number of `workload`, the same for equal ones."""
        number = self._workload_ids.get(workload)
        if number is None:
            number = self._workload_ids[workload] = len(self.workloads)
            self.workloads.append(workload)
            if number >= len(self._workload_keys):
                more = self._random.integers(1, 2**64, max(64, number), np.uint64)
                self._workload_keys = np.concatenate([self._workload_keys, more])
        return number

    def device_id(self, device: str, sharing: str = "time-slice") -> int:
        """Number of a device type in a sharing mode."""
        number = self._device_ids.get((device, sharing))
        if number is None:
            number = self._device_ids[device, sharing] = len(self.devices)
            self.devices.append((device, sharing))
            if number >= len(self._device_keys):
                more = self._random.integers(1, 2**64, 64, np.uint64)
                self._device_keys = np.concatenate([self._device_keys, more])
        return number

    def rows(self, devices: Ints, members: Ints, present: NDArray[np.bool_]) -> Ints:
        """Row of each set; new sets are predicted in a few calls.

        Args:
            devices: [N] device numbers.
            members: [N, M] workload numbers, in any order.
            present: [N, M] which of them are in the set; a set with none gets row 0 and no meaning.

        Returns:
            [N] row numbers, valid until the next call that adds sets beyond `limit`.
        """
        keys, empty = self._device_keys[devices], np.ones(len(devices), bool)
        for column in range(members.shape[1]):  # a sum along rows of a few members is slow in NumPy
            here = present[:, column]
            own = self._workload_keys[np.where(here, members[:, column], 0)]
            keys += np.where(here, own, np.uint64(0))
            empty &= ~here
        rows = self._find(keys)
        missing = (rows < 0) & ~empty
        if missing.any():
            _, first = np.unique(keys[missing], return_index=True)
            chosen = np.flatnonzero(missing)[first]
            if self._count and self._count + 2 * len(chosen) > self.limit:
                self._clear(self.step_time_s.shape[1])
                return self.rows(devices, members, present)
            members, present = members[chosen], present[chosen]
            order = np.argsort(np.where(present, members, np.iinfo(np.int64).max), axis=1, kind="stable")
            at = np.arange(len(chosen))[:, None]
            members, present = members[at, order], present[at, order]
            for begin in range(0, len(chosen), _TOGETHER):
                part = slice(begin, begin + _TOGETHER)
                self._learn(keys[chosen[part]], devices[chosen[part]], members[part], present[part])
            rows[missing] = self._find(keys[missing])
        rows[empty] = 0
        return rows

    def pairs(self, device: int, members: Ints) -> tuple[Ints, Ints]:
        """([P] rows of sets of two on a device, [P, 2] columns of their members in these rows).

        Args:
            members: [P, 2] workload numbers, in any order.
        """
        rows = self.rows(np.full(len(members), device), members, np.ones(members.shape, bool))
        return rows, np.argsort(members, axis=1, kind="stable")

    def answer(self, device: str, workloads: Sequence[Workload], sharing: str = "time-slice") -> SetAnswer:
        """The prediction for `workloads` on a device; the simple interface for a single set.

        Raises:
            UnknownNameError: the predictor does not know the device or a model.
        """
        ids = [self.workload_id(w) for w in workloads]
        order = sorted(range(len(ids)), key=ids.__getitem__)
        members = np.array([[ids[k] for k in order]])
        number = self.device_id(device, sharing)
        row = int(self.rows(np.array([number]), members, np.ones(members.shape, bool))[0])
        place = sorted(range(len(ids)), key=order.__getitem__)
        return SetAnswer(
            tuple(float(self.step_time_s[row, k]) for k in place),
            tuple(float(self.slowdown[row, k]) for k in place),
            float(self.memory_upper_bytes[row]),
            bool(self.fits[row]),
        )

    def solo(self, device: int, workload: int) -> int:
        """Row of `workload` alone."""
        return int(self.solos(np.array([device]), workload)[0])

    def solos(self, devices: Ints, workload: int) -> Ints:
        """[N] rows of `workload` alone on each of `devices`."""
        shape = (len(devices), 1)
        return self.rows(devices, np.full(shape, workload), np.ones(shape, bool))

    def steps_by_batch_s(self, device: int, workload: Workload, sizes: Sequence[int]) -> list[float]:
        """Seconds of a step of `workload` alone with each batch size.

        Infinite for a size other than its own that does not fit.
        """
        steps = []
        for size in sizes:
            row = self.solo(device, self.workload_id(replace(workload, batch_size=size)))
            fits = self.fits[row] or size == workload.batch_size
            steps.append(float(self.step_time_s[row, 0]) if fits else np.inf)
        return steps

    def _find(self, keys: Keys) -> Ints:
        mask = np.uint64(len(self._table_keys) - 1)
        slot = (keys & mask).astype(np.int64)
        rows = self._table_rows[slot]
        pending = np.flatnonzero((self._table_keys[slot] != keys) & (rows >= 0))
        while pending.size:
            slot[pending] = (slot[pending] + 1) & int(mask)
            rows[pending] = self._table_rows[slot[pending]]
            pending = pending[(self._table_keys[slot[pending]] != keys[pending]) & (rows[pending] >= 0)]
        return rows

    def _learn(self, keys: Keys, devices: Ints, members: Ints, present: NDArray[np.bool_]) -> None:
        """Predict new sets, and their members alone (contention needs both)."""
        groups = [tuple(row[p].tolist()) for row, p in zip(members, present, strict=True)]
        singles: dict[tuple[int, int], int] = {}
        for device, group in zip(devices.tolist(), groups, strict=True):
            for workload in group:
                singles.setdefault((device, workload), len(groups) + len(singles))
        groups.extend((workload,) for _, workload in singles)
        all_devices = [*devices.tolist(), *(device for device, _ in singles)]
        sets = [
            ColocationSet(self.devices[d][0], tuple(self.workloads[m] for m in group), self.devices[d][1])
            for d, group in zip(all_devices, groups, strict=True)
        ]
        answer = self._predict(sets)
        check_predictions(sets, answer)
        known = len(devices)
        alone = [
            [singles[d, m] for m in group] for d, group in zip(all_devices, groups[:known], strict=False)
        ]
        self._append(keys, groups[:known], answer, alone)

    def _predict(self, sets: list[ColocationSet]) -> PredictionArrays:
        """The predictor's answer.

        A set for which the device lacks a precision or MIG slices, or is too slow for a member, does not fit, and is
        not queried.
        """
        try:
            return self._predict_possible(sets)
        except TooSlowError:
            known = len(self.too_slow)
            self._find_too_slow(sets)
            if len(self.too_slow) == known:
                raise
            return self._predict_possible(sets)

    def _find_too_slow(self, sets: list[ColocationSet]) -> None:
        """Ask for each member alone, because the error does not say which is too slow."""
        for alone in dict.fromkeys(
            ColocationSet(s.device, (w,), s.sharing) for s in sets for w in s.workloads
        ):
            try:
                self._predict_possible([alone])
            except TooSlowError:
                self.too_slow.add((alone.device, alone.workloads[0]))

    def _predict_possible(self, sets: list[ColocationSet]) -> PredictionArrays:
        kinds = {(s.device, w.precision) for s in sets for w in s.workloads}
        lacking = {kind for kind in kinds if not runs_on(*kind)}
        possible = np.array(
            [
                _has_slices(s)
                and not any((s.device, w.precision) in lacking for w in s.workloads)
                and not any((s.device, w) in self.too_slow for w in s.workloads)
                for s in sets
            ]
        )
        if possible.all():
            return self.predictor.predict_arrays(sets)
        members = np.array([len(s.workloads) for s in sets])
        mask = np.arange(members.max()) < members[:, None]
        ones, nothing = np.ones(mask.shape), np.zeros(mask.shape)
        never = np.full(mask.shape, _NEVER_S)
        answer = PredictionArrays(
            mask,
            never,
            never.copy(),
            ones,
            nothing,
            nothing.copy(),
            np.zeros(len(sets)),
            np.zeros(len(sets), bool),
        )
        if possible.any():
            asked = self.predictor.predict_arrays([s for s, p in zip(sets, possible, strict=True) if p])
            width = asked.mask.shape[1]
            for name in ("solo_step_time_s", "step_time_s", "slowdown", "memory_bytes", "utilization_ratio"):
                rows = getattr(answer, name)[possible]
                rows[:, :width] = getattr(asked, name)
                getattr(answer, name)[possible] = rows
            answer.memory_upper_bytes[possible] = asked.memory_upper_bytes
            answer.fits[possible] = asked.fits
        return answer

    def _append(
        self,
        keys: Keys,
        groups: Sequence[tuple[int, ...]],
        answer: PredictionArrays,
        alone: list[list[int]],
    ) -> None:
        new, width = len(groups), answer.step_time_s.shape[1]
        if width > self.step_time_s.shape[1]:
            pad = ((0, 0), (0, width - self.step_time_s.shape[1]))
            for name in ("step_time_s", "slowdown", "contention"):
                setattr(self, name, np.pad(getattr(self, name), pad, constant_values=1.0))
        total = self._count + new
        if total > len(self.fits):
            room = max(1024, 2 * total)
            for name in (
                "step_time_s",
                "slowdown",
                "contention",
                "worst_slowdown",
                "memory_upper_bytes",
                "fits",
            ):
                old = getattr(self, name)
                grown = np.ones((room, *old.shape[1:]), old.dtype)
                grown[: self._count] = old[: self._count]
                setattr(self, name, grown)
        own = slice(self._count, total)
        self.step_time_s[own, :width] = answer.step_time_s[:new]
        self.slowdown[own, :width] = answer.slowdown[:new]
        self.worst_slowdown[own] = np.where(answer.mask[:new], answer.slowdown[:new], 1.0).max(axis=1)
        self.memory_upper_bytes[own] = answer.memory_upper_bytes[:new]
        self.fits[own] = answer.fits[:new]
        index = np.zeros((new, width), np.int64)
        for number, group in enumerate(groups):
            index[number, : len(group)] = alone[number]
        self.contention[own, :width] = contention(
            answer.slowdown[:new], answer.utilization_ratio[:new], answer.utilization_ratio[index, 0]
        )
        # A single job has no contention, regardless of rounding differences between two calls.
        self.contention[own][[len(group) == 1 for group in groups]] = 1.0
        while 3 * total > len(self._table_keys):
            self._table_keys = np.zeros(2 * len(self._table_keys), np.uint64)
            self._table_rows = np.full(len(self._table_keys), -1, np.int64)
            self._insert(self._keys, 0)
        self._keys = np.concatenate([self._keys, keys])
        self._insert(keys, self._count)
        self._count = total

    def _insert(self, keys: Keys, first_row: int) -> None:
        mask = len(self._table_keys) - 1
        for row, key in enumerate(keys, first_row):
            slot = int(key) & mask
            while self._table_rows[slot] >= 0:
                slot = (slot + 1) & mask
            self._table_keys[slot] = key
            self._table_rows[slot] = row


def contention(slowdown: Floats, share: Floats, solo_share: Floats) -> Floats:
    """kappa: mean over bandwidth, compute and PCIe of solo demand over co-located share, at least 1.

    Bandwidth and PCIe shares are not predicted, so for them the share is demand / slowdown, and kappa is the
    slowdown; the same is used for compute if a share is unknown or zero.

    Args:
        slowdown: [..., M].
        share, solo_share: [..., M] utilisation ratios together and alone.
    """
    known = (share > 0) & (solo_share > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        compute = np.where(known, solo_share / share, slowdown)
    return np.maximum(1.0, (2.0 * slowdown + compute) / 3.0)


def _has_slices(asked: ColocationSet) -> bool:
    """Whether the device has a MIG slice for each job, if the set is to have one each."""
    if asked.sharing != "mig" or len(asked.workloads) == 1:
        return True
    try:
        check_slices(asked.device, len(asked.workloads))
    except InputError:
        return False
    return True
