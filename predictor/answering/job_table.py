"""All features of a job on a device as one row; rows are computed once and reused in every set."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from models.features import OCCUPANCY, Floats, demand_ratios
from predictor.answering.bounds import (
    at_most_all_the_time,
    never_faster_with_more,
    no_busier_than_pairs,
    processor_sharing_excess,
)
from predictor.answering.kept_pairs import MOST_ASKED, KeptPairs, PairsWithin
from predictor.answering.pair_corrections import corrected_excess
from predictor.answering.repeated import each_once
from predictor.answering.set_network import Array, PreparedJobs, SetNetwork, from_torch
from predictor.answering.shares import beside_shares, effective_share, unlimited
from predictor.examples.examples import Integers, MemberVariants, settings_of
from predictor.fitted.coverage import Coverage
from predictor.fitted.device_memory import HeadCalibration, member_memory_bytes
from predictor.fitted.model import CotenantModel
from profiling.errors import TooSlowError
from profiling.workload import STEP_TIMES_S, Workload

JobKey = tuple[Workload, str, str]
# Answers [P, 2] about pairs, from rows [P, 2] without -1.
PairsOf = Callable[[Integers], Floats]
# If MPS was never measured, jobs are assumed to be at most as slow under it as time-sliced.
_TIME_SLICE, _MPS = "time-slice", "mps"


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
    """

    def __init__(
        self, model: CotenantModel, calibration: HeadCalibration, coverage: Coverage = Coverage()
    ) -> None:
        self._model, self._calibration, self._process = model, calibration, model.process
        self._coverage = coverage
        self._index: dict[JobKey, int] = {}
        self._lock = threading.Lock()
        self._settings: dict[str, Array] = {}
        self._pairs: dict[str, KeptPairs] = {}
        self.networks: list[SetNetwork] = [from_torch(network) for network in model.networks]
        self.solo_step_s: Floats = np.zeros(0)
        self.utilization: Floats = np.zeros(0)
        self.memory_bytes: Floats = np.zeros(0)
        self.state_bytes: Floats = np.zeros(0)
        self.device_bytes: Floats = np.zeros(0)
        self.memory_measured: NDArray[np.bool_] = np.zeros(0, dtype=bool)
        self.utilization_measured: NDArray[np.bool_] = np.zeros(0, dtype=bool)
        self.embedding: Floats = np.zeros((0, model.config.encoder.embedding))
        self.keys: list[JobKey] = []
        self.prepared: list[PreparedJobs] = []
        self._numbers: Integers = np.zeros(0, np.int64)  # number of each row in the process
        # Row of the same job time-sliced, -1 if it is not a bound.
        self._time_sliced: Integers = np.zeros(0, np.int64)
        # Share of the multiprocessors, the ratio of solo step times without and with it, utilisation without.
        self._share: Floats = np.zeros(0)
        self._unlimited: Floats = np.zeros(0)
        self._whole_use: Floats = np.zeros(0)
        # Share of the time that each, without a share, leaves to others; 0 if its utilisation was not measured.
        self._left: Floats = np.zeros(0)
        # Jobs in a mode never measured under co-location, about which the networks know nothing.
        self._processor_shared: NDArray[np.bool_] = np.zeros(0, dtype=bool)
        self._on_core: NDArray[np.bool_] = np.zeros(0, dtype=bool)

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
        whole = [unlimited(w, device, featurizer) for w, device, _ in jobs]
        ratio = np.array([r for _, r in whole])
        plain = [(w, device, mode) for (w, _), (_, device, mode) in zip(whole, jobs, strict=True)]
        variants, where = self._model.variants([w for w, _, _ in plain], [d for _, d, _ in plain])
        solo_step_s = variants.step_s[where] / ratio
        for (w, device, _), step_s in zip(jobs, solo_step_s.tolist(), strict=True):
            if w.solo.step_time_s is None:
                _check_predicted(step_s, w, device)
        member = self._model.scaler(variants.features)[where].astype(np.float32)
        setting = setting_rows([mode for _, _, mode in jobs], self._model.campaigns)
        memory = [
            member_memory_bytes(variants.jobs[v], w.solo, self._calibration)
            for v, (w, _, _) in zip(where, jobs, strict=True)
        ]
        whole_use = variants.demand[where, 0]
        # Under a share, a kernel runs for more of the step.
        utilization = [
            demand_ratios(featurizer.job(w, device).demand, step_s, w)[0] if r < 1.0 else use
            for (w, device, _), step_s, r, use in zip(
                jobs, solo_step_s.tolist(), ratio.tolist(), whole_use.tolist(), strict=True
            )
        ]
        grown = self._grown(variants, where, member, setting)
        if self._process is not None:
            numbers = self._process.numbers(plain, variants.step_s[where].tolist())
            self._numbers = np.concatenate([self._numbers, np.array(numbers, np.int64)])
        start = len(self.solo_step_s)
        self._share = np.concatenate([self._share, [effective_share(w, device) for w, device, _ in jobs]])
        self._unlimited = np.concatenate([self._unlimited, ratio])
        self.solo_step_s = np.concatenate([self.solo_step_s, solo_step_s])
        self.utilization = np.concatenate([self.utilization, utilization])
        self._whole_use = np.concatenate([self._whole_use, whole_use])
        self.memory_bytes = np.concatenate([self.memory_bytes, memory])
        state = [min(variants.jobs[v].demand.state_bytes, m) for v, m in zip(where, memory, strict=True)]
        self.state_bytes = np.concatenate([self.state_bytes, state])
        self.device_bytes = np.concatenate(
            [self.device_bytes, [variants.jobs[v].device.memory_bytes for v in where]]
        )
        self.embedding = np.concatenate([self.embedding, variants.features[where, : self.embedding.shape[1]]])
        measured = [w.solo.memory_bytes is not None for w, _, _ in jobs]
        self.memory_measured = np.concatenate([self.memory_measured, measured])
        busy = [
            w.solo.utilization_ratio is not None and not variants.jobs[v].device.is_cpu
            for v, (w, _, _) in zip(where, jobs, strict=True)
        ]
        self.utilization_measured = np.concatenate([self.utilization_measured, busy])
        self._left = np.concatenate([self._left, np.where(busy, 1.0 - whole_use, 0.0)])
        self.prepared = grown
        place = self._index | {job: start + offset for offset, job in enumerate(jobs)}
        time_sliced = [
            place[w, device, _TIME_SLICE] if self.is_bounded(device, mode) else -1 for w, device, mode in jobs
        ]
        self._time_sliced = np.concatenate([self._time_sliced, np.array(time_sliced, np.int64)])
        shared = [
            mode != "mig" and not variants.jobs[v].device.is_cpu and not self._coverage.has_mode(w.mode)
            for v, (w, _, mode) in zip(where, jobs, strict=True)
        ]
        self._processor_shared = np.concatenate([self._processor_shared, shared])
        on_core = [variants.jobs[v].device.is_cpu for v in where]
        self._on_core = np.concatenate([self._on_core, on_core])
        self.keys.extend(jobs)
        # Last, so that a reader without the lock never sees an incomplete row.
        for offset, job in enumerate(jobs):
            self._index[job] = start + offset

    def _grown(
        self, variants: MemberVariants, where: Integers, member: Array, setting: Array
    ) -> list[PreparedJobs]:
        demand = self._model.scaler.demand(variants.demand)[where].astype(np.float32)
        if self.prepared:
            demand = np.concatenate([self.prepared[0].demand, demand])
        entries = [network.entry(member, setting) for network in self.networks]
        if self.prepared:
            entries = [np.concatenate([p.entry, e]) for p, e in zip(self.prepared, entries, strict=True)]
        return [PreparedJobs(entry, demand) for entry in entries]

    def excess(self, rows: Integers, sharing: str) -> Floats:
        """Predicted latent slowdown - 1: the ensemble's mean log slowdown, averaged with the process's.

        An additional neighbour makes no job faster, nor slower than by its share of the time if that was measured;
        unmeasured MPS makes none slower than time slicing; and jobs on a core get at most all of its time.

        Args:
            rows: [S, M] rows of the table, -1 where a set has fewer members; equal sets are computed once.
            sharing: sharing mode of all sets.

        Returns:
            [S, M]; 0 where masked.
        """
        count, width = len(self.solo_step_s), rows.shape[1]
        if width < 3:
            return self._under_shares(self._of_pairs(rows, sharing), rows)
        # Subsets of a set have pairs in common.
        within = PairsWithin(partial(self._about_pairs, sharing), rows)
        correction = self._corrections_of(within, rows) if sharing == _TIME_SLICE else None
        whole = partial(self._bounded, sharing, correction)

        def excess_of_pairs(pairs: Integers) -> Floats:
            return within(pairs)[..., 0]

        def of_parts(parts: Integers) -> Floats:
            if parts.shape[1] == 2:
                return self._under_shares(excess_of_pairs(parts), parts)
            return each_once(answer, parts, count)

        def answer(parts: Integers) -> Floats:
            if sharing != _TIME_SLICE:
                return self._under_shares(whole(parts), parts)
            limited = no_busier_than_pairs(whole, excess_of_pairs, parts, self._whole_use)
            return self._under_shares(limited, parts)

        left = None if sharing == "mig" else self._left
        # Different sets of a few jobs share many subsets.
        return each_once(partial(never_faster_with_more, of_parts, left=left), rows, count)

    def _of_pairs(self, pairs: Integers, sharing: str) -> Floats:
        """[P, 2] excess of jobs that may use all multiprocessors, from rows [P, 2], -1 where a job is alone."""
        if 0 < len(pairs) <= MOST_ASKED and pairs.shape[1] == 2 and (pairs >= 0).all():
            return self._about_pairs(sharing, pairs)[..., 0]
        return each_once(partial(self._bounded, sharing, None), pairs, len(self.solo_step_s))

    def _about_pairs(self, sharing: str, pairs: Integers) -> Floats:
        """[P, 2, 2] excess of jobs that may use all multiprocessors, and the process's log correction of the networks'."""
        if len(pairs) > MOST_ASKED:
            return self._new_pairs(sharing, pairs)
        kept = self._pairs.get(sharing)
        if kept is None:
            kept = self._pairs[sharing] = KeptPairs(partial(self._new_pairs, sharing))
        return kept(pairs)

    def _new_pairs(self, sharing: str, pairs: Integers) -> Floats:
        """`_about_pairs`, not cached."""
        plain = self._excess_of_networks(pairs, sharing)
        blended = self._blended(plain, pairs)
        correction = np.log1p(blended) - np.log1p(plain)
        return np.stack([self._limited(blended, sharing, pairs), correction], -1)

    def _corrections_of(self, within: PairsOf, rows: Integers) -> PairsOf | None:
        """Log corrections [P, 2] of pairs; None where the process has no answer to any."""
        if self._process is None or not self._process.covers(self._numbers[rows[rows >= 0]]).any():
            return None
        return lambda pairs: within(pairs)[..., 1]

    def _bounded(self, sharing: str, correction: PairsOf | None, rows: Integers) -> Floats:
        """[S, M] excess of jobs that may use all multiprocessors, in larger sets with corrections of their pairs."""
        excess = self.unbounded_excess(rows, sharing)
        if correction is not None:
            excess = corrected_excess(excess, rows, correction, self._whole_use)
        return self._limited(excess, sharing, rows)

    def _limited(self, excess: Floats, sharing: str, rows: Integers) -> Floats:
        """What is known of some devices and jobs, whatever the networks and the process have learned."""
        time_sliced = self._time_sliced[rows[:, 0]] >= 0 if sharing == _MPS else np.zeros(0, dtype=bool)
        if time_sliced.any():
            sliced = self.time_sliced(rows[time_sliced])
            correction = None
            if rows.shape[1] > 2:
                correction = self._corrections_of(
                    PairsWithin(partial(self._about_pairs, _TIME_SLICE), sliced), sliced
                )
            in_turn = self._bounded(_TIME_SLICE, correction, sliced)
            excess[time_sliced] = np.minimum(excess[time_sliced], in_turn)
        if self._processor_shared.any():
            present = rows >= 0
            shared = np.where(present, self._processor_shared[rows], True).all(1)
            busy = np.where(present, self._whole_use[rows], 0.0)[shared]
            excess[shared] = processor_sharing_excess(busy) * present[shared]
        if self._on_core.any():
            together = self._on_core[rows[:, 0]]
            busy = np.where(rows >= 0, self._whole_use[rows], 0.0)[together]
            excess[together] = at_most_all_the_time(excess[together], busy)
        return excess

    def _under_shares(self, excess: Floats, rows: Integers) -> Floats:
        """[S, M] excess of jobs under their shares."""
        if (self._share < 1.0).any():
            return np.asarray(excess * beside_shares(self._share[rows], rows >= 0) * self._unlimited[rows])
        return excess

    def time_sliced(self, rows: Integers) -> Integers:
        """[S, M] rows of the same jobs time-sliced, for jobs whose mode `is_bounded`.

        They are -1 where a set has fewer members.
        """
        return np.where(rows >= 0, self._time_sliced[rows], -1)

    def _excess_of_networks(self, rows: Integers, sharing: str) -> Floats:
        """[S, M] the ensemble's mean."""
        if sharing not in self._settings:
            self._settings[sharing] = setting_rows([sharing], self._model.campaigns)[0]
        setting = self._settings[sharing]
        each = [n.excess(p, rows, setting) for n, p in zip(self.networks, self.prepared, strict=True)]
        if len(each) == 1:
            return each[0].astype(np.float64)
        return np.asarray(np.expm1(np.mean(np.log1p(each), axis=0, dtype=np.float64)))

    def unbounded_excess(self, rows: Integers, sharing: str) -> Floats:
        """Like `excess`, without the bounds, and of sets of three or more without corrections of their pairs."""
        return self._blended(self._excess_of_networks(rows, sharing), rows)

    def _blended(self, excess: Floats, rows: Integers) -> Floats:
        """[S, M] the mean of the networks' excess and the process's; the networks' where it has no answer."""
        if self._process is None:
            return excess
        numbers, own = self._numbers[rows], self.prepared[0].demand[rows, OCCUPANCY].astype(np.float64)
        present = rows >= 0
        if not present.all():
            numbers, own = np.where(present, numbers, -1), np.where(present, own, 0.0)
        # Column by column, because numpy reduces rows of two or three slowly.
        together = sum(own.T, np.zeros(len(rows)))
        return self._process.blended(excess, numbers, together[:, None] - own)

    def is_processor_shared(self, rows: Sequence[int]) -> bool:
        """Whether a set follows processor sharing.

        It does if jobs like its members were never measured together.
        """
        return bool(self._processor_shared[list(rows)].all())

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


def setting_rows(modes: Sequence[str], campaigns: Sequence[str]) -> Array:
    """One-hot settings of answers to users: the sharing mode, and a campaign other than those trained on."""
    return settings_of(modes, ["" for _ in modes], campaigns).astype(np.float32)
