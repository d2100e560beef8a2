"""From tidy tables to a fitted predictor: encoder, networks, heads, intervals, domain, manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from models.colocation_network import NetworkConfig
from models.features import is_cpu
from predictor.config import LossCallback, TrainingConfig
from predictor.examples.examples import Examples, SoloExamples, examples_of
from predictor.examples.featurizer import Featurizer, JobOnDevice
from predictor.fitted.coverage import Coverage
from predictor.fitted.device_memory import HeadCalibration, member_memory_bytes, process_bytes
from predictor.fitted.domain import Domain
from predictor.fitted.intervals import GROUPS, Intervals, conformal_quantile
from predictor.fitted.model import CotenantModel
from predictor.fitted.utilization import independent_ratio, measured_difference, predicted_ratio
from predictor.training.networks import fit
from predictor.training.progress import NOTHING_KEPT, Progress
from predictor.training.replay import remember
from profiling.devices import get_device, split_device
from profiling.workload import SoloProfile, Workload

if TYPE_CHECKING:
    import pandas as pd

    from predictor.fitted.fitted import Fitted


# Two measurements of one job on one type of device that lie further apart are of different things.
SAME_STEP = 3.0


def solo_examples(solo: pd.DataFrame) -> SoloExamples:
    """Solo step times on one GPU as training rows of the encoder.

    Campaigns that differ on the same job by more than `SAME_STEP` do not mean the same by a step; the shortest counts.
    """
    rows = solo[(solo.gpus == 1) & solo.step_time_s.notna()]
    shortest = rows.groupby(["workload", "device"], observed=True).step_time_s.transform("min")
    rows = rows[rows.step_time_s <= SAME_STEP * shortest]
    return SoloExamples(
        tuple(Workload.parse(spec) for spec in rows.workload),
        tuple(rows.device),
        rows.step_time_s.to_numpy(dtype=float),
    )


def fit_tables(
    colocation: pd.DataFrame,
    solo: pd.DataFrame,
    network: NetworkConfig,
    config: TrainingConfig,
    featurizer: Featurizer,
    report: LossCallback | None = None,
    progress: Progress = NOTHING_KEPT,
) -> Fitted:
    """Fit everything that a checkpoint keeps.

    Intervals come from leaving out each architecture in turn (with one network instead of the ensemble, which errs on the
    wide side); nothing of a left-out model is seen in that, solo step times included.
    """
    from predictor.fitted.fitted import Fitted, Manifest

    examples = examples_of(colocation, solo)
    model = fit(examples, solo_examples(solo), featurizer, network, config, report, progress=progress)
    intervals = cross_fitted_intervals(colocation, solo, network, config, featurizer, report, progress)
    jobs = dict.fromkeys(
        (w.without_solo(), d) for w, d in zip(examples.workloads, examples.devices, strict=True)
    )
    encoded = model.encode(jobs)
    points = np.array([encoded[job].embedding for job in jobs])
    names = [workload.model for workload, _ in jobs]
    manifest = Manifest(
        examples.set_ids,
        tuple(sorted(set(colocation.source))),
        tuple(sorted(set(colocation.licence))),
        tuple(sorted(set(examples.architectures))),
        int(np.bincount(examples.set_index).max()),
        coverage=Coverage.of(examples.workloads, examples.devices, examples.mode),
    )
    return Fitted(
        model,
        fit_heads(colocation, solo, featurizer),
        intervals,
        Domain.fit(points, names),
        manifest,
        remember(model, examples, config.seed),
    )


def cross_fitted_intervals(
    colocation: pd.DataFrame,
    solo: pd.DataFrame,
    network: NetworkConfig,
    config: TrainingConfig,
    featurizer: Featurizer,
    report: LossCallback | None = None,
    progress: Progress = NOTHING_KEPT,
) -> Intervals:
    """Intervals from residuals of architectures left out in turn, some at a time where there are many.

    How much wider they are on a type of device that was never measured comes from leaving out each type, together with a
    part of the architectures, where there are at least two.
    """
    examples = examples_of(colocation, solo)
    single = replace(config, ensemble=1)
    members = np.array(examples.architectures)
    places = np.array([split_device(d)[0] for d in examples.devices])
    names = sorted(set(examples.architectures))
    groups = [names[start::CROSS_FITS] for start in range(min(CROSS_FITS, len(names)))]

    def sets_with(rows: NDArray[np.bool_]) -> set[str]:
        return {examples.set_ids[s] for s in np.unique(examples.set_index[rows])}

    def errors(
        stage: str, group: list[str], hidden: set[str], scored: set[str]
    ) -> dict[str, np.ndarray] | None:
        """Of a model that saw neither the hidden sets nor solo runs of the group, on the scored ones."""
        kept = [s for s in examples.set_ids if s not in hidden]
        if not kept or not scored:
            return None

        def run() -> dict[str, np.ndarray]:
            known, unknown = (solo[solo.architecture.isin(group) == side] for side in (False, True))
            left_out = examples.subset(sorted(scored))
            model = fit(
                examples.subset(kept),
                solo_examples(known),
                featurizer,
                network,
                single,
                within(report, stage),
                progress=progress.within(stage),
                held_out=left_out,
            )
            return left_out_errors(model, left_out, unknown)

        return progress.arrays(stage, run)

    parts = []
    for number, group in enumerate(groups):
        touched = sets_with(np.isin(members, group))
        parts.append(errors(f"left out {number + 1}", group, touched, touched))
    elsewhere = []
    devices = sorted(set(places.tolist()))
    for number, device in enumerate(devices if len(devices) > 1 else []):
        group = groups[number % len(groups)]
        touched, there = sets_with(np.isin(members, group)), sets_with(places == device)
        elsewhere.append(errors(f"left out {device}", group, touched | there, touched & there))
    intervals = Intervals.fit(*residuals_of([p for p in parts if p is not None]))
    return intervals.widened_by(residuals_of([p for p in elsewhere if p is not None])[0])


def left_out_errors(model: CotenantModel, left_out: Examples, solo: pd.DataFrame) -> dict[str, np.ndarray]:
    """How far off `model` is on sets, and on jobs alone, that it has not seen.

    Returns:
        per group of intervals, `GROUP` the log error of the ratio and `GROUP slowdown` the predicted log slowdown, of
        what was measured and is not censored; `alone`, the log error of the solo step times; `utilization`, what the
        sets' utilisation is off by.
    """
    found = {}
    there = ~np.isnan(left_out.ratio) & ~left_out.censored
    for kind, seen in (("solo", left_out), ("graph", left_out.without_solo())):
        ratio, slow = model.predict_log_ratio(seen)
        found[kind] = np.log(left_out.ratio[there]) - ratio[there]
        found[f"{kind} slowdown"] = slow[there]
    off = predicted_ratio(model, left_out) - independent_ratio(model, left_out)
    utilization_residual = measured_difference(model, left_out).numpy() - off
    return {
        **found,
        "alone": solo_errors(model, solo),
        "utilization": utilization_residual[~np.isnan(utilization_residual)],
    }


def residuals_of(
    parts: Sequence[dict[str, np.ndarray]],
) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], np.ndarray, np.ndarray]:
    """Arguments of `Intervals.fit` from what `left_out_errors` gave, one after the other."""

    def joined(name: str) -> np.ndarray:
        return np.concatenate([part[name] for part in parts]) if parts else np.zeros(0)

    return (
        {kind: (joined(kind), joined(f"{kind} slowdown")) for kind in GROUPS},
        joined("alone"),
        joined("utilization"),
    )


def within(report: LossCallback | None, part: str) -> LossCallback | None:
    """`report` with the part of the run before the name of the phase."""
    if report is None:
        return None
    return lambda phase, step, steps, loss: report(f"{part}: {phase}", step, steps, loss)


# At most so many models are fitted to learn how far off they are; each leaves out its share of the architectures.
CROSS_FITS = 6


def solo_errors(model: CotenantModel, solo: pd.DataFrame) -> np.ndarray:
    """Log predicted / measured step time of every job measured alone."""
    rows = solo_examples(solo)
    known = model.encode(zip(rows.workloads, rows.devices, strict=True))
    predicted = np.array(
        [known[(w, d)].step_time_s for w, d in zip(rows.workloads, rows.devices, strict=True)]
    )
    return np.log(predicted / rows.step_time_s) if len(predicted) else np.zeros(0)


def fit_heads(
    colocation: pd.DataFrame,
    solo: pd.DataFrame,
    featurizer: Featurizer,
    start: HeadCalibration | None = None,
) -> HeadCalibration:
    """Constants of the memory and utilisation heads by least absolute error; those of `start` where too little was measured."""
    start = start or HeadCalibration()
    rows = _memory_rows(solo, featurizer)
    host, factor = _host_context(rows, start), _activation_factor(rows, start)
    calibration = replace(start, host_context_bytes=host, activation_factor=factor)
    # A processor is always busy and its memory is shared pages; only GPUs say how these add up.
    on_gpu = [not is_cpu(get_device(name)) for name in colocation.device.astype(str)]
    examples = examples_of(colocation[on_gpu], solo)
    offset, solo_error = _sharing_bytes(examples, start)
    # Bounds are for device memory; what a processor's processes share says nothing of it.
    error = [
        abs(np.log(b / member_memory_bytes(job, SoloProfile(), calibration)))
        for job, b in rows
        if not is_cpu(job.device)
    ]
    graph_error = conformal_quantile(np.array(error)) if len(error) >= ENOUGH else start.memory_log_error[0]
    return replace(
        calibration,
        sharing_bytes=offset,
        memory_log_error=(max(graph_error, start.memory_log_error[0]), max(solo_error, 0.02)),
    )


# Fewer rows than this calibrate nothing.
ENOUGH = 8


def _memory_rows(solo: pd.DataFrame, featurizer: Featurizer) -> list[tuple[JobOnDevice, float]]:
    """Jobs alone with the memory that was measured of them."""
    rows = solo[(solo.gpus == 1) & solo.memory_bytes.notna()].to_dict("records")
    return [
        (featurizer.job(Workload.parse(str(r["workload"])), str(r["device"])), float(r["memory_bytes"]))
        for r in rows
    ]


def _host_context(rows: list[tuple[JobOnDevice, float]], start: HeadCalibration) -> float:
    """Main memory of a process without its tensors; the least of what was seen where it cannot be told apart."""
    rest = [b - job.demand.state_bytes - job.demand.activation_bytes for job, b in rows if is_cpu(job.device)]
    return max(float(np.median(rest)), 0.0) if len(rest) >= ENOUGH else start.host_context_bytes


def _activation_factor(rows: list[tuple[JobOnDevice, float]], start: HeadCalibration) -> float:
    """From GPU rows alone: what a processor's processes take besides says nothing of a GPU's allocator."""
    found = [
        (b - process_bytes(job, start) - job.demand.state_bytes) / job.demand.activation_bytes
        for job, b in rows
        if not is_cpu(job.device)
        and job.demand.activation_bytes > 0
        and b > process_bytes(job, start) + job.demand.state_bytes
    ]
    return float(np.clip(np.median(found), 0.8, 4.0)) if len(found) >= ENOUGH else start.activation_factor


def _members(examples: Examples, what: str) -> list[list[float]]:
    sets: list[list[float]] = [[] for _ in examples.set_ids]
    for workload, index in zip(examples.workloads, examples.set_index, strict=True):
        value = getattr(workload.solo, what)
        sets[index].append(np.nan if value is None else value)
    return sets


def _sharing_bytes(examples: Examples, start: HeadCalibration) -> tuple[float, float]:
    totals = np.array([sum(m) for m in _members(examples, "memory_bytes")])
    extra = np.bincount(examples.set_index, minlength=len(totals)) - 1
    usable = ~np.isnan(totals) & ~np.isnan(examples.set_memory_bytes) & (extra > 0)
    usable &= examples.resident
    if usable.sum() < ENOUGH:
        return start.sharing_bytes, start.memory_log_error[1]
    gap = (examples.set_memory_bytes - totals)[usable] / extra[usable]
    offset = float(np.median(gap))
    residual = np.abs(np.log(examples.set_memory_bytes[usable] / (totals + offset * extra)[usable]))
    return offset, conformal_quantile(residual)
