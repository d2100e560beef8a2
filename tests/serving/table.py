"""A real predictor from a table: fast to create, and every number can be checked by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from predictor.types import MemberPrediction, Prediction, PredictionArrays, Quantity
from profiling.devices import get_device
from profiling.workload import ColocationSet, Workload

_DEMAND = {"lstm-wikitext2": 0.3, "resnet18-cifar": 0.7}
UNSEEN = "h100"


def demand(workload: Workload) -> float:
    return _DEMAND.get(workload.model, 0.5)


def alone_s(workload: Workload) -> float:
    return workload.solo.step_time_s or 0.1 * 0.99**workload.frozen_prefix


def slowdown(workloads: Sequence[Workload]) -> float:
    return max(1.0, sum(map(demand, workloads)))


def memory_bytes(workload: Workload) -> float:
    return workload.solo.memory_bytes or 1e9 + 1e7 * (workload.batch_size or 64)


def _around(value: float) -> Quantity:
    return Quantity(value, value * 0.9, value * 1.1)


@dataclass(eq=False)
class TablePredictor:
    """Slowdown is the sum of all demands, at least 1; a solo step takes 0.1 s, less with frozen layers, unless the SPEC
    states it."""

    version: str = "table-1"
    calls: int = 0
    seen: set[Any] = field(default_factory=set)

    def predict(self, asked: ColocationSet) -> Prediction:
        return self.predict_many([asked])[0]

    def throughput(
        self, workload: Workload, device: str, frozen_prefix: int, gpus: int, cache: bool, **more: Any
    ) -> Any:
        from predictor.freezing import layer_throughput

        return layer_throughput(workload, device, frozen_prefix, gpus, cache, anchor_step_time_s=0.1, **more)

    def predict_many(self, sets: Sequence[ColocationSet]) -> list[Prediction]:
        self.calls += 1
        return [self._one(s) for s in sets]

    def _one(self, asked: ColocationSet) -> Prediction:
        factor = slowdown(asked.workloads)
        total = sum(map(memory_bytes, asked.workloads))
        fits = total * 1.1 <= get_device(asked.device).memory_bytes
        members = tuple(
            MemberPrediction(
                str(w), _around(alone_s(w)), _around(alone_s(w) * factor), Quantity(factor, max(1.0, factor * 0.9), factor * 1.1),
                _around(1 / factor), _around(memory_bytes(w)), _around(demand(w) / factor), True,
            )
            for w in asked.workloads
        )  # fmt: skip
        reasons = () if fits else (f"{total * 1.1 / 2**30:.1f} GiB do not fit",)
        return Prediction(
            asked.device, asked.sharing, self.version, members, _around(total),
            _around(min(1.0, sum(map(demand, asked.workloads)))), fits, reasons,
            (f"co-location was never measured on this GPU type ({UNSEEN})",) if asked.device == UNSEEN else (),
        )  # fmt: skip

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        width = max(len(s.workloads) for s in sets)
        shape = (len(sets), width)
        mask = np.zeros(shape, bool)
        step, slow, solo = np.ones(shape), np.ones(shape), np.ones(shape)
        memory, share = np.zeros(shape), np.zeros(shape)
        upper, fits = np.zeros(len(sets)), np.zeros(len(sets), bool)
        for row, prediction in enumerate(map(self._one, sets)):
            for column, member in enumerate(prediction.members):
                mask[row, column] = True
                solo[row, column] = member.solo_step_time_s.value
                step[row, column] = member.step_time_s.value
                slow[row, column] = member.slowdown.value
                memory[row, column] = member.memory_bytes.value
                share[row, column] = member.utilization_ratio.value
            upper[row], fits[row] = prediction.total_memory_bytes.upper, prediction.fits
        return PredictionArrays(mask, solo, step, slow, memory, share, upper, fits)


@dataclass
class TableSource:
    """A model source whose next model is set by the test."""

    predictor: Any = field(default_factory=TablePredictor)
    name: str = "1"
    error: Exception | None = None

    def tag(self) -> str:
        return self.name

    def load(self, tag: str, graphs: Any) -> Any:
        if self.error is not None:
            raise self.error
        return self.predictor
