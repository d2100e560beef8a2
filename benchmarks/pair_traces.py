"""Traces of jobs whose pairs were measured as far as possible, and beliefs about them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from predictor.types import SetPredictor
from profiling.workload import ColocationSet, SoloProfile, Workload
from scheduling.beliefs.table import Solo, TablePredictor
from scheduling.core.job import TraceJob


def pair_trace(table: TablePredictor, device: str, jobs: int, seed: int) -> list[TraceJob]:
    """Draw `jobs` jobs within an hour from workloads chosen so that as many of their pairs as possible were
    measured."""
    rng = np.random.default_rng(seed)
    workloads = list(measured_workloads(table, device))
    arrival = np.sort(rng.uniform(0, 3600.0, jobs))
    duration = rng.lognormal(np.log(1800.0), 0.8, jobs)
    picks = rng.integers(0, len(workloads), jobs)
    return [
        TraceJob(
            f"job-{k}",
            workloads[picks[k]],
            float(duration[k]) / table.solo[device, workloads[picks[k]].without_solo()].step_time_s,
            float(arrival[k]),
        )
        for k in range(jobs)
    ]


def measured_workloads(table: TablePredictor, device: str) -> Iterator[Workload]:
    """Workloads that occur in some pair, as a user would submit them: with their solo measurements."""
    paired = {w for d, members in table.ratios for w in members if d == device}
    for workload in table.workloads(device):
        if workload in paired:
            solo = table.solo[device, workload]
            measured = SoloProfile(
                solo.step_time_s, solo.memory_bytes or None, min(solo.utilization_ratio, 1.0) or None
            )
            yield replace(workload, solo=measured)


def believed(belief: SetPredictor, table: TablePredictor, device: str) -> TablePredictor:
    """Predictions of `belief` for every job and every measured pair of `table`, queried once for all traces.

    A pair that is predicted not to fit has throughput 0, like one that ran out of memory.
    """
    submitted = {w.without_solo(): w for w in measured_workloads(table, device)}
    alone = belief.predict_arrays([ColocationSet(device, (w,)) for w in submitted.values()])
    solo = {
        (device, plain): Solo(float(step), float(memory), float(use))
        for plain, step, memory, use in zip(
            submitted,
            alone.step_time_s[:, 0],
            alone.memory_bytes[:, 0],
            alone.utilization_ratio[:, 0],
            strict=True,
        )
    }
    pairs = [members for d, members in table.ratios if d == device and len(members) == 2]
    answer = belief.predict_arrays(
        [ColocationSet(device, tuple(submitted[m] for m in members)) for members in pairs]
    )
    ratios: dict[tuple[str, tuple[Workload, ...]], list[float]] = {
        (device, members): (1.0 / slowdown[:2]).tolist() if fits else [0.0, 0.0]
        for members, slowdown, fits in zip(pairs, answer.slowdown, answer.fits, strict=True)
    }
    return TablePredictor(solo, ratios)


def load_tables(data: Path, source: str | None) -> dict[str, tuple[str, TablePredictor, set[str]]]:
    """Load one table per campaign and device of the folder: the device, the table, and the ids of its sets.

    Raises:
        InputError: no rows of `source`.
    """
    from datasets.sets import rows_of
    from datasets.tables import read_table
    from profiling.devices import get_device

    solo, pairs = read_table(data, "solo"), read_table(data, "colocation")
    if source is not None:
        solo, pairs = (rows_of(table, [source], "source") for table in (solo, pairs))
    tables = {}
    for (campaign, device), rows in pairs.groupby(["campaign", "device"]):
        alone = solo[(solo.campaign == campaign) & (solo.device == device)]
        memory = {str(device): get_device(str(device)).memory_bytes}
        table = TablePredictor.from_frames(alone, rows, memory)
        tables[f"{campaign} {device}"] = (str(device), table, set(rows.set_id.astype(str)))
    return tables
