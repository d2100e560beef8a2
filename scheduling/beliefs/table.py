"""A table of measurements as a predictor: the simulator's ground truth, and the oracle of comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np

from predictor.types import Floats, PredictionArrays
from profiling.devices import canonical, mig_layout, split_device
from profiling.errors import InputError, UnknownNameError
from profiling.workload import ColocationSet, Workload

# Error of a time on a slice relative to the error in the cost of sharing. With the usual sigma of 0.2, times are 8 %
# off in the mean, as those of the shipped cost model on slices (docs/slices.md: 8.8 %).
SLICE_PART = 0.5


@dataclass(frozen=True, slots=True)
class Solo:
    """A job alone on a device: seconds per step, bytes, share of the device's time (0 to 1)."""

    step_time_s: float
    memory_bytes: float = 0.0
    utilization_ratio: float = 0.0


class TablePredictor:
    """Predictions from measurements.

    Args:
        solo: (device, workload) -> its solo run. Workloads have no solo measurements.
        ratios: (device, workloads) -> co-located / solo throughput of each, in the same order. The order of
            the workloads is not significant; a set may be given once.
        memory_bytes: device -> bytes; a set whose memory (measured, else the sum) exceeds it does not fit.
        set_memory_bytes: (device, workloads) -> total bytes, if measured.
    """

    def __init__(
        self,
        solo: Mapping[tuple[str, Workload], Solo],
        ratios: Mapping[tuple[str, tuple[Workload, ...]], Sequence[float]],
        memory_bytes: Mapping[str, float] | None = None,
        set_memory_bytes: Mapping[tuple[str, tuple[Workload, ...]], float] | None = None,
    ) -> None:
        # By the catalogue's names, as in the sets that are asked about.
        self.solo = {(canonical(device), job): run for (device, job), run in solo.items()}
        self.memory_bytes = {canonical(device): most for device, most in (memory_bytes or {}).items()}
        self.ratios: dict[tuple[str, tuple[Workload, ...]], tuple[float, ...]] = {}
        for (device, members), values in ratios.items():
            order = _order(members)
            key = canonical(device), tuple(members[i] for i in order)
            self.ratios[key] = tuple(float(values[i]) for i in order)
        self.set_memory_bytes = {
            (canonical(device), tuple(members[i] for i in _order(members))): float(value)
            for (device, members), value in (set_memory_bytes or {}).items()
        }

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(sorted({device for device, _ in self.solo}))

    def workloads(self, device: str) -> tuple[Workload, ...]:
        """Workloads measured alone on `device`, by name."""
        return tuple(sorted((w for d, w in self.solo if d == canonical(device)), key=str))

    @classmethod
    def from_frames(
        cls,
        solo: Any,
        colocation: Any,
        memory_bytes: Mapping[str, float] | None = None,
    ) -> TablePredictor:
        """Read the tidy tables `solo` and `colocation` of `datasets.tables`, from one campaign only.

        Rows with a workload missing from `solo` are skipped; repeated rows of a set are averaged.
        """
        alone = {
            (row.device, Workload.parse(row.workload)): Solo(
                float(row.step_time_s), _number(row.memory_bytes), _number(row.utilization_ratio)
            )
            for row in solo[solo["gpus"].fillna(1) == 1].itertuples()
            if row.step_time_s > 0
        }
        measured: dict[tuple[str, tuple[Workload, ...]], list[tuple[tuple[float, ...], float]]] = {}
        for _, rows in colocation.groupby("set_id", sort=True):
            rows = rows.sort_values("member")
            device = str(rows["device"].iloc[0])
            members = tuple(Workload.parse(text) for text in rows["workload"])
            if not all((device, m) in alone for m in members):
                continue
            order = _order(members)
            values = tuple(float(rows["throughput_ratio"].iloc[i]) for i in order)
            key = (device, tuple(members[i] for i in order))
            measured.setdefault(key, []).append((values, _number(rows["set_memory_bytes"].iloc[0])))
        ratios = {k: tuple(np.mean([v for v, _ in many], axis=0)) for k, many in measured.items()}
        memory = {
            k: float(np.max([m for _, m in many])) for k, many in measured.items() if any(m for _, m in many)
        }
        return cls(alone, ratios, memory_bytes, memory)

    def measured(self, device: str, members: Sequence[Workload]) -> list[float] | None:
        """Co-located / solo throughput of each member of a measured set, in the order given."""
        order = _order(members)
        ratios = self._ratios(device, tuple(members[i] for i in order))
        if ratios is None:
            return None
        values = dict(zip(order, ratios, strict=True))
        return [values[k] for k in range(len(members))]

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        """See `SetPredictor`. Ratios above 1 (noise of the measured baseline) count as 1.

        Raises:
            UnknownNameError: a workload was not measured alone on the device.
        """
        shape = (len(sets), max((len(s.workloads) for s in sets), default=1))
        mask = np.zeros(shape, bool)
        solo, slowdown = np.ones(shape), np.ones(shape)
        memory, share, bound = np.zeros(shape), np.zeros(shape), np.zeros(len(sets))
        fits = np.ones(len(sets), bool)
        for row, colocation_set in enumerate(sets):
            members = tuple(w.without_solo() for w in colocation_set.workloads)
            size = len(members)
            mask[row, :size] = True
            alone = [self._solo(colocation_set.device, m) for m in members]
            solo[row, :size] = [s.step_time_s for s in alone]
            memory[row, :size] = [s.memory_bytes for s in alone]
            order = _order(members)
            key = (colocation_set.device, tuple(members[i] for i in order))
            ratios = self._ratios(*key)
            if ratios is None:
                fits[row] = False
                slowdown[row, :size] = float(size)
            else:
                slowdown[row, order] = 1.0 / np.minimum(ratios, 1.0)
            share[row, :size] = [s.utilization_ratio for s in alone] / slowdown[row, :size]
            bound[row] = self.set_memory_bytes.get(key, memory[row].sum())
            fits[row] &= bound[row] <= self.memory_bytes.get(colocation_set.device, np.inf)
        return PredictionArrays(mask, solo, solo * slowdown, slowdown, memory, share, bound, fits)

    def _solo(self, device: str, workload: Workload) -> Solo:
        try:
            return self.solo[device, workload]
        except KeyError:
            others = [d for d in self.devices if (d, workload) in self.solo]
            if others:
                raise UnknownNameError(
                    f"{workload} was not measured alone on {device}",
                    expected="a GPU type on which it was: " + ", ".join(others),
                ) from None
            raise UnknownNameError(
                f"{workload} was measured alone on no GPU type",
                expected="a job with a step time on one GPU",
                hint="pipelines of several GPUs (Sia's gpt_pmp) run under sia, sia-packed and Gavel's policies only",
            ) from None

    def _ratios(self, device: str, members: tuple[Workload, ...]) -> Sequence[float] | None:
        """Ratios of `members` in their sorted order, or None if unknown."""
        if len(members) == 1:
            return (1.0,)
        known = self.ratios.get((device, members))
        return known if known is not None and min(known) > 0 else None


class NoisyPredictor:
    """A predictor with seeded errors in the cost of sharing and of slices, as a ground truth unknown to the belief.

    The excess slowdown of each member of a set of two or more is multiplied by exp(sigma z), with z standard
    normal, drawn from the set's names and the seed, so that the same set always behaves in the same way. A job's
    time alone on a MIG slice is multiplied by exp(SLICE_PART sigma z), drawn from job and slice, but is never less
    than on a larger slice or the whole card. Times on whole cards and on the slice that covers one have no error.
    """

    def __init__(self, predictor: Any, sigma: float = 0.2, seed: int = 0) -> None:
        if not 0 <= sigma < 3:
            raise InputError("sigma is out of range", expected="a number from 0 to 3", got=sigma)
        self.predictor, self.sigma, self.seed = predictor, sigma, seed
        self._on_slice: dict[tuple[str, Workload], float] = {}

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        """See `SetPredictor`."""
        answer = self.predictor.predict_arrays(sets)
        slowdown, solo_s = answer.slowdown.copy(), answer.solo_step_time_s.copy()
        self._learn_slices(sets)
        for row, colocation_set in enumerate(sets):
            device, workloads = colocation_set.device, colocation_set.workloads
            if split_device(device)[1] is not None:
                factors = [self._on_slice.get((device, workload), 1.0) for workload in workloads]
                solo_s[row, : len(workloads)] *= factors
            if len(workloads) < 2:
                continue
            order = _order(workloads)
            factor = np.exp(
                self.sigma
                * self._draw(
                    device, colocation_set.sharing, *(str(workloads[i]) for i in order), count=len(order)
                )
            )
            slowdown[row, order] = 1.0 + (slowdown[row, order] - 1.0) * factor
        return replace(answer, solo_step_time_s=solo_s, slowdown=slowdown, step_time_s=solo_s * slowdown)

    def _learn_slices(self, sets: Sequence[ColocationSet]) -> None:
        """Draw the errors of new jobs on all slices of a card, from the largest slice to the smallest."""
        if self.sigma == 0:
            return
        new = {
            (split_device(s.device)[0], workload)
            for s in sets
            if split_device(s.device)[1] is not None
            for workload in s.workloads
            if (s.device, workload) not in self._on_slice
        }
        for card, workload in sorted(new, key=str):
            devices = [card, *reversed(mig_layout(card).devices)]
            least_s = 0.0
            for device in devices:
                try:
                    alone = self.predictor.predict_arrays([ColocationSet(device, (workload,))])
                except UnknownNameError:  # of a table that lacks this slice
                    continue
                alone_s = float(alone.solo_step_time_s[0, 0])
                error = (
                    0.0
                    if device in devices[:2]
                    else SLICE_PART * self._draw(device, str(workload), count=1)[0]
                )
                least_s = max(least_s, alone_s * float(np.exp(self.sigma * error)))
                self._on_slice[device, workload] = least_s / alone_s

    def _draw(self, *names: str, count: int) -> Floats:
        """Standard normal numbers that depend on the names and the seed only."""
        digest = blake2b("|".join([str(self.seed), *names]).encode(), digest_size=8).digest()
        return np.random.default_rng(int.from_bytes(digest)).standard_normal(count)


def _order(members: Iterable[Workload]) -> list[int]:
    names = [str(m) for m in members]
    return sorted(range(len(names)), key=names.__getitem__)


def _number(value: Any) -> float:
    number = float(value) if value is not None else 0.0
    return number if np.isfinite(number) else 0.0
