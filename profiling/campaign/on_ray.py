"""Runs a plan on the nodes of a Ray cluster, each on its own device; the slices are written locally."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from profiling.campaign.plan import CampaignPlan, PlannedRun
from profiling.campaign.runner import (
    CampaignStatus,
    Measure,
    due_runs,
    recorded,
    status_before,
    what_is_left,
)
from profiling.campaign.slices import SliceWriter, next_slice_number, read_results
from profiling.measure.settings import MeasureSettings
from profiling.ray_workers import PATIENCE_S, RayWorkers

Measured = tuple[dict[str, Any], dict[str, Any]]


def run_on_ray(
    plan: CampaignPlan,
    folder: Path,
    address: str,
    *,
    limit_s: float | None = None,
    done_folders: Sequence[Path] = (),
    retry_failed: bool = False,
    retry_disturbed: bool = False,
    on_done: Callable[[PlannedRun, CampaignStatus], None] = lambda _run, _status: None,
    measure: Measure | None = None,
    patience_s: float = PATIENCE_S,
) -> CampaignStatus:
    """Execute the remaining runs of `plan` on a Ray cluster, one at a time per GPU, or per node for a CPU plan.

    Every finished run is on this machine's disk before its worker gets the next. Runs of a node that dies are
    repeated on another; nodes that join are used.

    Args:
        folder, limit_s, done_folders, retry_failed, retry_disturbed, measure: see `run_campaign`; `measure` must be
            importable on the nodes.
        address: address of the cluster, or `auto`.
        on_done: called after each run is stored, with the status, in which runs that are still to be repeated are not done.
        patience_s: how long to wait for a node when there is none.

    Returns:
        The status at the end, as that of `run_campaign`.

    Raises:
        ConflictError, LimitError: as for `run_campaign`.
        UnavailableError: Ray is not installed, or there is no cluster or no node left.
    """
    began, folders = time.monotonic(), [*done_folders, folder]
    make = partial(_Measurer, plan.device, plan.settings, measure)
    with (
        SliceWriter(folder, first=next_slice_number(done_folders)) as writer,
        RayWorkers[PlannedRun, Measured](
            address, make, on_gpus=plan.device == "cuda", patience_s=patience_s
        ) as workers,
    ):
        results = read_results(folders)
        due = due_runs(plan, results, retry_failed, retry_disturbed)
        for run, (record, environment) in workers.run(
            what_is_left(plan, results, began, limit_s, retry_failed, retry_disturbed)
        ):
            if environment["fingerprint"] not in results.environments:
                writer.append_environment(environment)
                results.environments[environment["fingerprint"]] = environment
            writer.append_run(record)
            results.add(record)
            due.remove(run)
            on_done(run, status_before(plan, results, folders, due))
    return status_before(plan, results, folders, due)


class _Measurer:
    """Lives on a node; measures runs there, and describes the node."""

    def __init__(self, device: str, settings: MeasureSettings, measure: Measure | None) -> None:
        from profiling.measure.environment import describe_environment

        self.settings, self.measure = settings, measure
        self.environment = describe_environment(device)

    def __call__(self, run: PlannedRun) -> Measured:
        record = recorded(self.measure, run.request, self.settings)
        return {**record, "environment": self.environment["fingerprint"]}, self.environment
