"""Constants of the analytic memory and utilisation heads, from measured jobs and sets."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from predictor.examples.examples import Examples
from predictor.examples.featurizer import Featurizer, JobOnDevice
from predictor.fitted.device_memory import (
    HeadCalibration,
    activation_factor,
    member_memory_bytes,
    optimizer_temporary_bytes,
    process_bytes,
    set_memory_bytes,
)
from predictor.fitted.intervals import conformal_quantile
from profiling.devices import get_device
from profiling.workload import SoloProfile, Workload

if TYPE_CHECKING:
    import pandas as pd

# Fewer rows than this are not used for calibration.
ENOUGH = 8


def fit_heads(
    examples: Examples,
    solo: pd.DataFrame,
    featurizer: Featurizer,
    start: HeadCalibration = HeadCalibration(),
) -> HeadCalibration:
    """Constants of the memory and utilisation heads by least absolute error.

    They are those of `start` if there are too few measurements.

    Args:
        examples: measured sets, for the memory that sharing adds.
        solo: tidy table of solo runs, for the memory of one process.
        featurizer: reads graphs.
        start: constants to start from.
    """
    rows = _memory_rows(solo, featurizer)
    host, factor = _host_context(rows, start), _activation_factor(rows, start)
    calibration = replace(
        start,
        host_context_bytes=host,
        activation_factor=factor * start.activation_factor,
        half_activation_factor=factor * start.half_activation_factor,
    )
    # Only GPUs, because a CPU is always busy and its memory is shared pages.
    on_gpu = [
        set_id
        for set_id, row in zip(examples.set_ids, examples.first, strict=True)
        if not get_device(examples.devices[row]).is_cpu
    ]
    offset, solo_error = _sharing_bytes(examples.subset(on_gpu), start)
    # Bounds are for device memory, about which the memory that processes share on a CPU says nothing.
    error = [
        abs(np.log(b / member_memory_bytes(job, SoloProfile(), calibration)))
        for job, b in rows
        if not job.device.is_cpu
    ]
    graph_error = conformal_quantile(np.array(error)) if len(error) >= ENOUGH else start.memory_log_error[0]
    return replace(
        calibration,
        sharing_bytes=offset,
        memory_log_error=(max(graph_error, start.memory_log_error[0]), max(solo_error, 0.02)),
    )


def _memory_rows(solo: pd.DataFrame, featurizer: Featurizer) -> list[tuple[JobOnDevice, float]]:
    """Solo runs with their measured memory."""
    rows = solo[(solo.gpus == 1) & solo.memory_bytes.notna()].to_dict("records")
    return [
        (featurizer.job(Workload.parse(str(r["workload"])), str(r["device"])), float(r["memory_bytes"]))
        for r in rows
    ]


def _host_context(rows: list[tuple[JobOnDevice, float]], start: HeadCalibration) -> float:
    """Median main memory of a process without its tensors; that of `start` if there are too few rows."""
    rest = [b - job.demand.state_bytes - job.demand.activation_bytes for job, b in rows if job.device.is_cpu]
    return max(float(np.median(rest)), 0.0) if len(rest) >= ENOUGH else start.host_context_bytes


def _activation_factor(rows: list[tuple[JobOnDevice, float]], start: HeadCalibration) -> float:
    """Measured activations relative to those of `start`, from GPU rows only.

    What else a process takes on a CPU says nothing about a GPU's allocator, nor does the peak of a job whose optimiser
    allocates more than its activations take.
    """
    factors = [
        (b - process_bytes(job, start) - job.demand.state_bytes)
        / (activation_factor(job, start) * job.demand.activation_bytes)
        for job, b in rows
        if not job.device.is_cpu
        and activation_factor(job, start) * job.demand.activation_bytes > optimizer_temporary_bytes(job)
        and b > process_bytes(job, start) + job.demand.state_bytes
    ]
    return float(np.clip(np.median(factors), 0.8, 4.0)) if len(factors) >= ENOUGH else 1.0


def _sharing_bytes(examples: Examples, start: HeadCalibration) -> tuple[float, float]:
    alone = np.array([w.solo.memory_bytes for w in examples.workloads], dtype=float)  # NaN where not measured
    members = examples.padded(alone)
    totals = members.sum(axis=-1)
    extra = np.bincount(examples.set_index, minlength=len(totals)) - 1
    usable = ~np.isnan(totals) & ~np.isnan(examples.set_memory_bytes) & (extra > 0)
    usable &= examples.resident
    if usable.sum() < ENOUGH:
        return start.sharing_bytes, start.memory_log_error[1]
    gap = (examples.set_memory_bytes - totals)[usable] / extra[usable]
    offset = float(np.median(gap))
    predicted = set_memory_bytes(members, replace(start, sharing_bytes=offset))
    residual = np.abs(np.log(examples.set_memory_bytes[usable] / predicted[usable]))
    return offset, conformal_quantile(residual)
