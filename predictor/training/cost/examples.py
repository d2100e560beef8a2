"""Measured steps as examples for the cost model: each distinct operator of a job once, with its count."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from models.cost.job import JobInput
from models.cost.work import Floats
from predictor.examples.featurizer import GraphSource
from profiling.devices import get_device
from profiling.errors import CotenantError
from profiling.workload import Workload

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, eq=False)
class CostExample:
    """One measured job.

    Attributes:
        row: row in the table of measured steps.
        job: the job, with equal operators merged.
        log_s: log of measured seconds.
        campaign: campaign and mode, see `campaign_of`.
        weight: weight in the loss.
        timing: which quantity was measured, one of `TIMINGS`.
    """

    row: int
    job: JobInput
    log_s: float
    campaign: str
    weight: float = 1.0
    timing: str = "step"


@dataclass(frozen=True, slots=True)
class Skipped:
    """Number of rows left out, by reason."""

    reasons: dict[str, int]

    def add(self, reason: str) -> None:
        self.reasons[reason] = self.reasons.get(reason, 0) + 1


def campaign_of(row: pd.Series) -> str:
    """Campaign and mode of a row; such rows share host costs."""
    return f"{row['campaign']}/{row['mode']}"


def cost_examples(
    solo: pd.DataFrame,
    graph_source: GraphSource,
    report: Callable[[int, int], None] = lambda _done, _total: None,
    timing: str = "step",
) -> tuple[list[CostExample], Skipped]:
    """Examples from rows of the table `solo` (one GPU, with a step time).

    Rows with an unknown graph or device are counted. Equal rows measured repeatedly have the weight of one.
    With `timing` "busy", `step_time_s` holds busy time.
    """
    examples: list[CostExample] = []
    skipped = Skipped({})
    merged: dict[tuple[Workload, str], JobInput] = {}
    order = np.argsort(solo["workload"].to_numpy(), kind="stable")
    rows = solo.iloc[order]
    for count, (row, (_, values)) in enumerate(zip(order, rows.iterrows(), strict=True)):
        report(count, len(rows))
        step_s = values["step_time_s"]
        if not step_s > 0 or values["gpus"] != 1:
            skipped.add("no step time of one GPU")
            continue
        try:
            workload, device = Workload.parse(values["workload"]).without_solo(), values["device"]
            key = workload, device
            if key not in merged:
                merged[key] = merge_equal(
                    JobInput.of(graph_source(workload.captured()), get_device(device), workload)
                )
        except CotenantError as error:
            skipped.add(type(error).__name__)
            continue
        example = CostExample(int(row), merged[key], float(np.log(step_s)), campaign_of(values))
        examples.append(replace(example, timing=timing))
    return examples, skipped


def merge_equal(job: JobInput) -> JobInput:
    """The same job with equal operators merged into a repeated one; passes that do not run are set to 0."""
    _, first, inverse = np.unique(operator_key(job), axis=0, return_index=True, return_inverse=True)
    merged = merge_rows(job, first, inverse.ravel())
    return merged if job.in_fp32 is None else replace(merged, in_fp32=merge_equal(job.in_fp32))


def operator_key(job: JobInput) -> Floats:
    """[N, ...] rows that are equal if the cost model cannot distinguish two operators."""
    # Six digits: smaller differences make none to the model.
    return np.concatenate([job.features, *(_rounded(c).T for c in _columns(job))], 1)


def merge_rows(job: JobInput, first: np.ndarray, inverse: np.ndarray) -> JobInput:
    """Keep one operator for each group.

    Args:
        job: with N operators.
        first: [R] number of the operator that represents a group.
        inverse: [N] group of each operator.
    """
    repeat = np.bincount(inverse, weights=job.work.repeat).astype(np.float64)
    merged = job.only(first)
    return replace(merged, work=replace(merged.work, repeat=repeat))


def _columns(job: JobInput) -> list[Floats]:
    """[2, N] each: the quantities of a pass; 0 where it does not run."""
    work, mask = job.work, job.mask
    names = ("compute_s", "traffic_bytes", "block_s", "kernels", "padding_s", "serial_s", "least_s")
    return [getattr(work, name) * mask for name in names]


def _rounded(values: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        digits = np.where(values > 0, np.round(np.log(values), 5), -np.inf)
    return np.where(np.isfinite(digits), digits, -99.0)


def balanced(examples: Iterable[CostExample], group_of: Callable[[CostExample], str]) -> list[CostExample]:
    """Examples weighted so that a group counts as the square root of its size."""
    listed = list(examples)
    groups = [group_of(e) for e in listed]
    sizes = {g: groups.count(g) for g in set(groups)}
    raw = np.array([sizes[g] ** -0.5 for g in groups])
    weights = raw / raw.mean() if len(raw) else raw
    return [replace(e, weight=float(w)) for e, w in zip(listed, weights, strict=True)]


def weighted(examples: Iterable[CostExample]) -> list[CostExample]:
    """Examples weighted so that each campaign's timings on a device count as the square root of their
    number."""
    return balanced(examples, lambda e: f"{e.campaign} {e.timing} {e.job.device.name}")
