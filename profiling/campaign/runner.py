"""Executes a plan: the runs not in any slice yet, until the time limit."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from profiling.campaign.plan import CampaignPlan, PlannedRun
from profiling.campaign.slices import (
    Results,
    SliceWriter,
    has_failed,
    next_slice_number,
    read_results,
    slice_files,
    was_disturbed,
)
from profiling.errors import InputError
from profiling.measure.request import RunRequest
from profiling.measure.settings import MeasureSettings

Measure = Callable[[RunRequest, MeasureSettings], dict[str, Any]]


@dataclass(frozen=True)
class CampaignStatus:
    """Progress of a campaign.

    Attributes:
        total, done: number of runs in the plan, and of those finished.
        failed: finished runs in which a member died or ran out of memory.
        disturbed: finished runs in which another process used the core for too long.
        remaining_s: expected time for the others, scaled by `pace`.
        torn_lines: lines truncated by a kill, whose runs do not count as done.
        stored_bytes: total size of the slices.
    """

    total: int
    done: int
    failed: int
    disturbed: int
    remaining_s: float
    torn_lines: int
    stored_bytes: int

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "left": self.total - self.done}


def status(plan: CampaignPlan, folders: Sequence[Path]) -> CampaignStatus:
    """Progress of `plan` according to the slices in `folders`."""
    return _status(plan, read_results(folders), folders)


def _status(plan: CampaignPlan, results: Results, folders: Sequence[Path]) -> CampaignStatus:
    done = [r for r in plan.runs if plan.run_id(r) in results.records]
    left = [r for r in plan.runs if plan.run_id(r) not in results.records]
    return CampaignStatus(
        total=len(plan.runs),
        done=len(done),
        failed=sum(has_failed(results.records[plan.run_id(r)]) for r in done),
        disturbed=sum(was_disturbed(results.records[plan.run_id(r)]) for r in done),
        remaining_s=sum(r.expected_s for r in left) * pace(plan, results),
        torn_lines=results.torn_lines,
        stored_bytes=sum(path.stat().st_size for folder in folders for path in slice_files(folder)),
    )


def status_before(
    plan: CampaignPlan, results: Results, folders: Sequence[Path], due: Sequence[PlannedRun]
) -> CampaignStatus:
    """Progress before the runs `due`, of which those that are to be repeated do not count as done."""
    return replace(
        _status(plan, results, folders),
        done=len(plan.runs) - len(due),
        remaining_s=sum(run.expected_s for run in due) * pace(plan, results),
    )


def pace(plan: CampaignPlan, results: Results) -> float:
    """Actual / expected time of the finished runs, without failed ones, which may end early; 1 if there are none."""
    finished = [
        (record["wall_s"], r.expected_s)
        for r in plan.runs
        if (record := results.records.get(plan.run_id(r))) is not None and not has_failed(record)
    ]
    expected = sum(e for _, e in finished)
    return sum(w for w, _ in finished) / expected if expected > 0 else 1.0


def run_campaign(
    plan: CampaignPlan,
    folder: Path,
    *,
    limit_s: float | None = None,
    done_folders: Sequence[Path] = (),
    retry_failed: bool = False,
    retry_disturbed: bool = False,
    on_start: Callable[[PlannedRun, CampaignStatus], None] = lambda _run, _status: None,
    measure: Measure | None = None,
) -> CampaignStatus:
    """Execute the remaining runs of `plan`.

    Args:
        folder: folder for the slices.
        limit_s: no run is started that, at the pace so far, would end later than this.
        done_folders: folders with slices of other machines, whose runs count as done.
        retry_failed: repeat runs in which a member failed.
        retry_disturbed: repeat runs that another process disturbed.
        on_start: called before each run, with the status, in which runs that are to be repeated are not done.
        measure: measures one run; `profiling.measure.run.measure` by default. A run whose SM shares or precision
            this machine lacks is stored as failed.

    Returns:
        The final status; `done < total` if the time limit was reached. Runs that were to be repeated and were not are not
        done.

    Raises:
        ConflictError: another process writes to `folder`.
        LimitError: all slices are full.
    """
    from profiling.measure.environment import describe_environment

    began = time.monotonic()
    folders = [*done_folders, folder]
    with SliceWriter(folder, first=next_slice_number(done_folders)) as writer:
        results = read_results(folders)
        environment = describe_environment(plan.device)
        if environment["fingerprint"] not in results.environments:
            writer.append_environment(environment)
        due = due_runs(plan, results, retry_failed, retry_disturbed)
        for run in what_is_left(plan, results, began, limit_s, retry_failed, retry_disturbed):
            on_start(run, status_before(plan, results, folders, due))
            due.remove(run)
            record = {
                **recorded(measure, run.request, plan.settings),
                "environment": environment["fingerprint"],
            }
            writer.append_run(record)
            results.add(record)
    return status_before(plan, results, folders, due)


def recorded(measure: Measure | None, request: RunRequest, settings: MeasureSettings) -> dict[str, Any]:
    """The record of a run; a failed one if this machine lacks its SM shares or precision, or a job cannot be built, so that
    the others are measured."""
    from profiling.measure.environment import device_name
    from profiling.measure.record import failed_record
    from profiling.measure.request import NotMeasurableError
    from profiling.measure.run import measure as measure_run
    from profiling.measure.sharing import SharesNotEnforcedError

    began = time.monotonic()
    try:
        return (measure or measure_run)(request, settings)
    except (SharesNotEnforcedError, NotMeasurableError) as error:
        name = device_name(request.device)
        return failed_record(request, settings, name, str(error), time.monotonic() - began)


def due_runs(
    plan: CampaignPlan, results: Results, retry_failed: bool, retry_disturbed: bool
) -> list[PlannedRun]:
    """Runs of `plan` that are not in `results`, in order, then those that are to be repeated, the seldom measured first."""
    due = []
    for run in plan.runs:
        known = results.records.get(plan.run_id(run))
        again = known is not None and (
            (retry_failed and has_failed(known)) or (retry_disturbed and was_disturbed(known))
        )
        if known is None or again:
            due.append(run)
    return sorted(due, key=lambda run: results.attempts[plan.run_id(run)])


def what_is_left(
    plan: CampaignPlan,
    results: Results,
    began: float,
    limit_s: float | None,
    retry_failed: bool = False,
    retry_disturbed: bool = False,
) -> Iterator[PlannedRun]:
    """Runs of `plan` that are not in `results`, up to one that would end later than `limit_s` after `began`.

    `results` may grow between two runs.

    Args:
        began: start of the campaign, by `time.monotonic`.
        limit_s, retry_failed, retry_disturbed: see `run_campaign`.
    """
    for run in due_runs(plan, results, retry_failed, retry_disturbed):
        expected = run.expected_s * pace(plan, results)
        if limit_s is not None and time.monotonic() - began + expected > limit_s:
            # A shorter run further down might fit, but runs are ordered by information, so stop here.
            return
        yield run


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


def parse_duration(text: str) -> float:
    """Seconds of `90`, `90s`, `9m`, `1.5h`.

    Raises:
        InputError: anything else.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text)
    if match is None or float(match[1]) <= 0:
        raise InputError("not a duration", expected="a number with s, m or h, like 9m", got=repr(text))
    return float(match[1]) * _UNITS[match[2]]
