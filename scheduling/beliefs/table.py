"""A table of measurements as a predictor: the simulator's ground truth, and the oracle of comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from predictor.types import PredictionArrays
from profiling.devices import canonical
from profiling.errors import InputError, UnknownNameError
from profiling.workload import ColocationSet, Workload


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
            raise UnknownNameError(
                f"{workload} was not measured alone on {device}",
                expected="a measured workload",
                got=str(workload),
                hint="measured devices: " + ", ".join(self.devices),
            ) from None

    def _ratios(self, device: str, members: tuple[Workload, ...]) -> Sequence[float] | None:
        """Ratios of `members` in their sorted order, or None if unknown."""
        if len(members) == 1:
            return (1.0,)
        known = self.ratios.get((device, members))
        return known if known is not None and min(known) > 0 else None


class NoisyPredictor:
    """A predictor with seeded errors in the cost of sharing, as a ground truth unknown to the belief.

    The excess slowdown of each member of a set of two or more is multiplied by exp(sigma z), with z standard
    normal, drawn from the set's names and the seed, so that the same set always behaves in the same way.
    """

    def __init__(self, predictor: Any, sigma: float = 0.2, seed: int = 0) -> None:
        if not 0 <= sigma < 3:
            raise InputError("sigma is out of range", expected="a number from 0 to 3", got=sigma)
        self.predictor, self.sigma, self.seed = predictor, sigma, seed

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        """See `SetPredictor`."""
        from dataclasses import replace
        from hashlib import blake2b

        answer = self.predictor.predict_arrays(sets)
        slowdown = answer.slowdown.copy()
        for row, colocation_set in enumerate(sets):
            if len(colocation_set.workloads) < 2:
                continue
            order = _order(colocation_set.workloads)
            text = "|".join(
                [
                    str(self.seed),
                    colocation_set.device,
                    colocation_set.sharing,
                    *(str(colocation_set.workloads[i]) for i in order),
                ]
            )
            draw = np.random.default_rng(int.from_bytes(blake2b(text.encode(), digest_size=8).digest()))
            factor = np.exp(self.sigma * draw.standard_normal(len(order)))
            slowdown[row, order] = 1.0 + (slowdown[row, order] - 1.0) * factor
        return replace(answer, slowdown=slowdown, step_time_s=answer.solo_step_time_s * slowdown)


def _order(members: Iterable[Workload]) -> list[int]:
    names = [str(m) for m in members]
    return sorted(range(len(names)), key=names.__getitem__)


def _number(value: Any) -> float:
    number = float(value) if value is not None else 0.0
    return number if np.isfinite(number) else 0.0
