"""All features of a job on a device as one row; rows are computed once and reused in every set."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from models.features import Floats, demand_ratios
from predictor.answering.contention import Contention
from predictor.answering.set_network import Array, PreparedJobs, SetNetwork, from_torch
from predictor.answering.settings import setting_rows
from predictor.answering.shares import effective_share, unlimited
from predictor.answering.transferred import transferred
from predictor.examples.examples import Integers
from predictor.fitted.coverage import Coverage
from predictor.fitted.device_memory import HeadCalibration, member_memory_bytes
from predictor.fitted.model import CotenantModel
from predictor.gaussian_process.set_process import NETWORK_SHARE
from predictor.types import Bools
from profiling.devices import larger_slices
from profiling.errors import TooSlowError
from profiling.workload import STEP_TIMES_S, Workload

JobKey = tuple[Workload, str, str]
# If MPS was never measured, jobs are assumed to be at most as slow under it as time-sliced.
_TIME_SLICE, _MPS = "time-slice", "mps"
# Weights of the networks whose caches, of tens of MB each, are kept: each observation may bring another weight.
_MOST_WEIGHTS = 4


class JobTable:
    """Rows of (workload with solo measurements, device, sharing mode), grown on demand.

    Args:
        model: networks and process.
        calibration: calibration of memory.
        coverage: what was measured; if MPS never was, slowdowns under it are bounded by those of time
            slicing, and jobs never measured together (inference) follow processor sharing.

    Attributes:
        networks: numpy twins of the model's ensemble.
        solo_step_s, utilization, memory_bytes, device_bytes: [V] columns.
        state_bytes: [V] part of the memory that is known exactly: parameters, gradients, optimiser state.
        keys: [V] the jobs.
        prepared: inputs cached for every row, per network.
        process_number: [V] numbers in the process.
        sm_share: [V] share of the multiprocessors, as the device enforces it.
        unlimited: [V] ratio of the solo step times without and with it; whole_use: [V] utilisation without it.
        left: [V] share of the time that each, without a share, leaves to others; 0 if its utilisation was not measured.
        processor_shared: [V] whether the mode was never measured under co-location, so that networks know nothing.
        on_core: [V] whether the device is a core; on_slice: [V] whether it is a MIG slice.
        has_slices: whether any is; read in every call.
    """

    def __init__(
        self, model: CotenantModel, calibration: HeadCalibration, coverage: Coverage = Coverage()
    ) -> None:
        self._model, self._calibration, self._process = model, calibration, model.process
        self._coverage = coverage
        self._index: dict[JobKey, int] = {}
        self._lock = threading.Lock()
        self._contention: dict[float, Contention] = {}
        self.networks: list[SetNetwork] = [from_torch(network) for network in model.networks]
        self.solo_step_s: Floats = np.zeros(0)
        self.utilization: Floats = np.zeros(0)
        self.memory_bytes: Floats = np.zeros(0)
        self.state_bytes: Floats = np.zeros(0)
        self.device_bytes: Floats = np.zeros(0)
        self.memory_measured: Bools = np.zeros(0, dtype=bool)
        self.utilization_measured: Bools = np.zeros(0, dtype=bool)
        self.embedding: Floats = np.zeros((0, model.config.encoder.embedding))
        self.keys: list[JobKey] = []
        self.prepared: list[PreparedJobs] = []
        # Row of the same job time-sliced, -1 if it is not a bound.
        self._time_sliced: Integers = np.zeros(0, np.int64)
        self.process_number: Integers = np.zeros(0, np.int64)
        self.sm_share: Floats = np.zeros(0)
        self.unlimited: Floats = np.zeros(0)
        self.whole_use: Floats = np.zeros(0)
        self.left: Floats = np.zeros(0)
        self.processor_shared: Bools = np.zeros(0, dtype=bool)
        self.on_core: Bools = np.zeros(0, dtype=bool)
        self.on_slice: Bools = np.zeros(0, dtype=bool)
        self.has_slices = False
        self._on_larger: dict[int, list[int]] = {}

    def rows(self, jobs: Sequence[JobKey]) -> list[int]:
        """Row of each job; new jobs are encoded together.

        Raises:
            UnknownNameError, InputError: unknown model, device or option.
            TooSlowError: a step takes more than two weeks.
        """
        index = self._index
        missing = [job for job in jobs if job not in index]
        if missing:
            time_sliced = [
                (w, device, _TIME_SLICE) for w, device, mode in missing if self.is_bounded(device, mode)
            ]
            with self._lock:
                self._add(list(dict.fromkeys(job for job in [*time_sliced, *missing] if job not in index)))
        return [index[job] for job in jobs]

    def is_bounded(self, device: str, mode: str) -> bool:
        """Whether slowdowns in this mode are bounded by time slicing: under MPS if it was never measured."""
        return mode == _MPS and not self._coverage.has_sharing(mode, device)

    def _add(self, jobs: list[JobKey]) -> None:
        if not jobs:
            return
        featurizer = self._model.featurizer
        workloads = [w for w, _, _ in jobs]
        whole = [unlimited(w, device, featurizer) for w, device, _ in jobs]
        ratio = np.array([r for _, r in whole])
        plain = [(w, device, mode) for (w, _), (_, device, mode) in zip(whole, jobs, strict=True)]
        variants, where = self._model.variants([w for w, _, _ in plain], [d for _, d, _ in plain])
        members = [variants.jobs[v] for v in where]
        solo_step_s = variants.step_s[where] / ratio
        for (w, device, _), step_s in zip(jobs, solo_step_s.tolist(), strict=True):
            if w.solo.step_time_s is None:
                _check_predicted(step_s, w, device)
        memory = [
            member_memory_bytes(m, w.solo, self._calibration) for m, w in zip(members, workloads, strict=True)
        ]
        whole_use = variants.demand[where, 0]
        # Under a share, a kernel runs for more of the step.
        utilization = [
            demand_ratios(featurizer.job(w, device).demand, step_s, w)[0] if r < 1.0 else use
            for (w, device, _), step_s, r, use in zip(
                jobs, solo_step_s.tolist(), ratio.tolist(), whole_use.tolist(), strict=True
            )
        ]
        is_cpu = np.array([m.device.is_cpu for m in members])
        busy_measured = np.array([w.solo.utilization_ratio is not None for w in workloads]) & ~is_cpu
        prepared = self._prepared_with(
            self._model.scaler(variants.features)[where].astype(np.float32),
            setting_rows([mode for _, _, mode in jobs], self._model.campaigns),
            self._model.scaler.demand(variants.demand)[where].astype(np.float32),
        )
        start = len(self.solo_step_s)
        place = self._index | {job: start + offset for offset, job in enumerate(jobs)}
        columns: dict[str, ArrayLike] = {
            "solo_step_s": solo_step_s,
            "utilization": utilization,
            "utilization_measured": busy_measured,
            "memory_bytes": memory,
            "memory_measured": [w.solo.memory_bytes is not None for w in workloads],
            "state_bytes": [min(m.demand.state_bytes, b) for m, b in zip(members, memory, strict=True)],
            "device_bytes": [m.device.memory_bytes for m in members],
            "embedding": variants.features[where, : self.embedding.shape[1]],
            "_time_sliced": [
                place[w, device, _TIME_SLICE] if self.is_bounded(device, mode) else -1
                for w, device, mode in jobs
            ],
            "sm_share": [effective_share(w, device) for w, device, _ in jobs],
            "unlimited": ratio,
            "whole_use": whole_use,
            "left": np.where(busy_measured, 1.0 - whole_use, 0.0),
            "processor_shared": [
                mode != "mig" and not m.device.is_cpu and not self._coverage.has_mode(w.mode)
                for m, (w, _, mode) in zip(members, jobs, strict=True)
            ],
            "on_core": is_cpu,
            "on_slice": [bool(larger_slices(device)) for _, device, _ in jobs],
        }
        if self._process is not None:
            columns["process_number"] = self._process.numbers(plain, variants.step_s[where].tolist())
        for name, values in columns.items():
            setattr(self, name, np.concatenate([getattr(self, name), values]))
        self.prepared = prepared
        self.has_slices = bool(self.on_slice.any())
        self.keys.extend(jobs)
        # Last, so that a reader without the lock never sees an incomplete row.
        self._index.update(place)

    def _prepared_with(self, member: Array, setting: Array, demand: Array) -> list[PreparedJobs]:
        """`prepared` with more rows."""
        entries = [network.entry(member, setting) for network in self.networks]
        if self.prepared:
            demand = np.concatenate([self.prepared[0].demand, demand])
            entries = [np.concatenate([p.entry, e]) for p, e in zip(self.prepared, entries, strict=True)]
        return [PreparedJobs(entry, demand) for entry in entries]

    def excess(self, rows: Integers, sharing: str, network_share: float = NETWORK_SHARE) -> Floats:
        """[S, M] slowdown - 1 of sets; see `Contention.excess`."""
        return self.contention(network_share).excess(rows, sharing)

    def contention(self, network_share: float = NETWORK_SHARE) -> Contention:
        """What sets of these rows do to each other; see `Contention`."""
        found = self._contention.get(network_share)
        if found is None:
            found = Contention(self, self._model, network_share)
            latest = list(self._contention.items())[1 - _MOST_WEIGHTS :]
            self._contention = {**dict(latest), network_share: found}
        return found

    def time_sliced(self, rows: Integers) -> Integers:
        """[S, M] rows of the same jobs time-sliced, for jobs whose mode `is_bounded`.

        They are -1 where a set has fewer members.
        """
        return np.where(rows >= 0, self._time_sliced[rows], -1)

    def on_larger(self, rows: Integers) -> Integers:
        """[K, S, M] rows of the same jobs on every larger slice of their card and on the card, given rows on slices.

        What is stated of a job alone is carried over. Where there are fewer such devices, the card is repeated; rows
        are -1 where a set has fewer members.
        """
        distinct, where = np.unique(rows, return_inverse=True)
        known = self._on_larger
        for row in distinct.tolist():
            if row not in known:
                known[row] = [-1] if row < 0 else self.rows(self._larger_of(*self.keys[row]))
        most = max(map(len, map(known.__getitem__, distinct.tolist())))
        found = [known[row] + known[row][-1:] * (most - len(known[row])) for row in distinct.tolist()]
        return np.moveaxis(np.array(found)[where.reshape(rows.shape)], -1, 0)

    def _larger_of(self, workload: Workload, device: str, mode: str) -> list[JobKey]:
        share, featurizer = workload.sm_share_ratio, self._model.featurizer
        return [
            (transferred(workload, device, larger, share, featurizer), larger, mode)
            for larger in larger_slices(device)
        ]

    def is_time_sliced(self, rows: Integers) -> Bools:
        """[S] whether slowdowns of jobs are bounded by those of time slicing."""
        return np.asarray(self._time_sliced[rows] >= 0)

    def is_processor_shared(self, rows: Sequence[int]) -> bool:
        """Whether a set follows processor sharing.

        It does if jobs like its members were never measured together.
        """
        return bool(self.processor_shared[list(rows)].all())

    def utilization_residual(self, rows: Integers) -> Floats:
        """[S] ensemble mean of the sets' utilisation minus that of independent phases (0 to 1 scale).

        0 if the solo utilisation of a member was not measured. `rows` as in `excess`.
        """
        each = [n.utilization_residual(p, rows) for n, p in zip(self.networks, self.prepared, strict=True)]
        known = np.where(rows >= 0, self.utilization_measured[rows], True).all(1)
        return np.asarray(np.mean(each, axis=0, dtype=np.float64) * known)


def _check_predicted(step_time_s: float, workload: Workload, device: str) -> None:
    most_s = STEP_TIMES_S[1]
    if step_time_s > most_s:
        raise TooSlowError(
            f"{workload.model}: a step would take {step_time_s:.3g} s on {device}",
            expected=f"steps of at most {most_s:.3g} s (two weeks)",
            hint="lower its batch size or gradient accumulation",
        )
