"""Parts that the records of all kinds of runs have in common."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from profiling.errors import CotenantError, without_name
from profiling.measure.request import RunRequest
from profiling.measure.session import MemberProcess
from profiling.measure.settings import MeasureSettings
from profiling.measure.statistics import summarize
from profiling.spelling import in_short
from profiling.workload import Workload


def new_record(request: RunRequest, settings: MeasureSettings, device_name: str) -> dict[str, Any]:
    """The record of a run that starts now, without results."""
    return {
        "version": 1,
        "id": request.run_id(settings),
        "request": request.to_mapping(),
        "device": device_name,
        "started_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "host_input": settings.host_input,
        "notes": [],
    }


def member_entry(member: MemberProcess) -> dict[str, Any]:
    """A member's entry without measurements: the job, its outcome, and the properties reported when it was built."""
    return {**_entry(member.workload, member.outcome, member.message), **member.facts}


def failed_record(
    request: RunRequest, settings: MeasureSettings, device_name: str, message: str, wall_s: float
) -> dict[str, Any]:
    """The record of a run that could not begin, for the same reason for all members."""
    return {
        **new_record(request, settings, device_name),
        # A message may name one of several members.
        "members": [_entry(w, "failed", without_name(message, str(w))) for w in request.workloads],
        "repeats": [],
        "set": {},
        "sharing": request.sharing,
        "wall_s": round(wall_s, 3),
    }


def _entry(workload: Workload, outcome: str, message: str) -> dict[str, Any]:
    return {
        "workload": str(workload.without_solo()),
        "architecture": workload.model,
        "batch_size": workload.batch_size,
        "precision": workload.precision,
        "frozen_prefix": workload.frozen_prefix,
        "outcome": outcome,
        "message": message,
    }


def name_graphs(record: dict[str, Any]) -> None:
    """Capture the members that are the user's code, and name their graphs as `captured`, by which the tables' readers
    know them: code that a record or table names is never imported."""
    from profiling.capture import local_workload

    for member in record["members"]:
        spec = member["workload"]
        if ":" not in Workload.parse(spec).model or member["outcome"] != "ok":
            continue
        try:
            job = local_workload(spec)
        except CotenantError as error:
            name = member["architecture"]
            record["notes"].append(
                f"{name} has no graph, so its rows cannot be used for training: {without_name(str(error), name)}"
            )
        else:
            member |= {"captured": str(in_short(job)), "precision": job.precision}


def solo_figures(step_times_s: Sequence[float], stable_ratio: float) -> dict[str, Any]:
    """Solo step time of a member and its spread.

    Args:
        step_times_s: one per repeat, at least one.
        stable_ratio: largest spread that counts as stable.
    """
    solo = summarize(step_times_s, stable_ratio)
    return {
        "solo_step_time_s": solo.median,
        "solo_step_time_mad_s": solo.mad,
        "solo_spread_ratio": solo.spread_ratio,
        "solo_verdict": solo.verdict,
    }
