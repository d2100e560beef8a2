"""A synthetic predictor of slices and shares: Amdahl's law over multiprocessors, and processor sharing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictor.types import PredictionArrays, SetPredictor
from profiling.devices import get_device, split_device
from profiling.workload import ColocationSet, Workload
from scheduling.slices.options import Options, SliceConfig, SliceJob, devices_of, sets_of
from scheduling.slices.questions import answer

GIB = 2.0**30


class AmdahlPredictor:
    """Job `m-K` needs `serial[K]` of its solo time on any slice; memory in GiB; counts predicted sets."""

    def __init__(self, serial: Sequence[float], memory_gib: Sequence[float], base_s: float = 0.1) -> None:
        self.serial, self.memory, self.base_s = list(serial), list(memory_gib), base_s
        self.asked = 0

    def jobs(self) -> list[Workload]:
        return [Workload(f"m-{k}") for k in range(len(self.serial))]

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        self.asked += len(sets)
        shape = (len(sets), max(len(s.workloads) for s in sets))
        mask, solo, step = np.zeros(shape, bool), np.ones(shape), np.ones(shape)
        memory = np.zeros(shape)
        room = np.zeros(len(sets))
        for row, asked in enumerate(sets):
            device = get_device(asked.device)
            whole = get_device(split_device(asked.device)[0])
            room[row] = device.memory_bytes
            numbers = [int(w.model.split("-")[1]) for w in asked.workloads]
            busy = [1 - self.serial[k] for k in numbers]
            for column, (k, workload) in enumerate(zip(numbers, asked.workloads, strict=True)):
                share = device.sm_count / whole.sm_count * workload.sm_share_ratio
                alone = self.base_s * (1 + k) * (self.serial[k] + (1 - self.serial[k]) / share)
                others = sum(busy) - busy[column]
                factor = 1 + (0.8 if asked.sharing == "mps" else 1.0) * others
                mask[row, column] = True
                solo[row, column], step[row, column] = alone, alone * factor
                memory[row, column] = self.memory[k] * GIB
        total = memory.sum(1)
        return PredictionArrays(
            mask, solo, step, step / solo, memory, np.where(mask, 0.5, 0.0), total, total <= room
        )


def ask(jobs: Sequence[SliceJob], card: str, predictor: SetPredictor, config: SliceConfig) -> Options:
    """Predict all sets that the configuration allows."""
    sets = sets_of(card, devices_of(card, config.mig), range(len(jobs)), config)
    return answer(jobs, card, list(sets), predictor, config)


def simulated_s(
    predictor: SetPredictor, device: str, work: Sequence[tuple[Workload, float]], sharing: str
) -> list[float]:
    """When each of the jobs (workload under its share, steps) ends that start together, one event at a time."""
    running, now_s, ended_s = dict(enumerate(work)), 0.0, [0.0] * len(work)
    while running:
        workloads = tuple(workload for workload, _ in running.values())
        # A job alone is not answered as one that shares unless it is limited.
        mode = sharing if len(running) > 1 or workloads[0].sm_share_ratio < 1 else "time-slice"
        steps = predictor.predict_arrays([ColocationSet(device, workloads, mode)]).step_time_s[0]
        rates = {job: 1.0 / float(step) for job, step in zip(running, steps, strict=False)}
        job = min(running, key=lambda j: running[j][1] / rates[j])
        passed_s = running[job][1] / rates[job]
        now_s += passed_s
        running = {j: (w, left - rates[j] * passed_s) for j, (w, left) in running.items()}
        del running[job]
        ended_s[job] = now_s
    return ended_s
