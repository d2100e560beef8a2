"""The campaign commands, shared by `cotenant campaign` and `python -m profiling campaign`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from profiling.campaign.plan import CampaignPlan, PlannedRun
from profiling.campaign.runner import CampaignStatus, due_runs, parse_duration, run_campaign, status_before
from profiling.campaign.runner import status as campaign_status
from profiling.campaign.slices import check_begun
from profiling.errors import InputError

PlanFile = Annotated[Path, typer.Argument(help="plan.json, made by `cotenant campaign plan`.")]
Output = Annotated[Path, typer.Option("--out", "-o", help="Folder with the slices.")]
Done = Annotated[
    list[Path] | None,
    typer.Option(
        "--done", help="Folder with slices of another machine, whose runs are skipped; may be repeated."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of tables.")]


def run(
    plan: PlanFile,
    output: Output,
    limit: Annotated[
        str | None, typer.Option(help="Start no run that would end later than this, e.g. 9m.")
    ] = None,
    done: Done = None,
    retry_failed: Annotated[bool, typer.Option(help="Measure failed runs again.")] = False,
    retry_disturbed: Annotated[
        bool, typer.Option("--retry-disturbed", help="Measure runs again that another process disturbed.")
    ] = False,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address of a Ray cluster on whose nodes to measure, or `auto`.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs of the plan without measuring.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Execute the remaining runs of a plan; run the same command again to resume after an interruption.

    Exit code 1 if the time limit was reached before all runs were done.

    Example:

        cotenant campaign run plan.json -o campaign --limit 9m
    """
    loaded = CampaignPlan.load(plan)
    folders = [*(done or []), output]
    check_begun(*(done or []))
    if dry_run:
        _check_dry_run({"--limit": limit, "--ray": ray})
        _dry_run(loaded, folders, retry_failed, retry_disturbed, as_json)
        return
    options: dict[str, Any] = {
        "limit_s": parse_duration(limit) if limit else None,
        "done_folders": done or [],
        "retry_failed": retry_failed,
        "retry_disturbed": retry_disturbed,
    }
    if ray is None:
        final = run_campaign(loaded, output, on_start=_tell, **options)
    else:
        from profiling.campaign.on_ray import run_on_ray

        final = run_on_ray(loaded, output, ray, on_done=_tell_done, **options)
    _print_status(final, as_json)
    if final.done < final.total:
        raise typer.Exit(1)


def status(plan: PlanFile, output: Output, done: Done = None, as_json: Json = False) -> None:
    """Show the progress of a campaign.

    Example:

        cotenant campaign status plan.json -o campaign
    """
    loaded, folders = CampaignPlan.load(plan), [*(done or []), output]
    check_begun(*folders)
    _print_status(campaign_status(loaded, folders), as_json)


def export(
    source: Annotated[list[Path], typer.Argument(help="Folders with slices.")],
    output: Annotated[Path, typer.Option("--out", "-o", help="Folder for the tables and the card.")],
    name: Annotated[str, typer.Option(help="Campaign name: a column of every row.")],
    as_json: Json = False,
) -> None:
    """Export slices as tidy Parquet tables, operator graphs and a data card.

    Example:

        cotenant campaign export campaign -o measured --name cpu-2026-11
    """
    from profiling.campaign.export import export_campaign

    counts = export_campaign(source, output, name)
    if as_json:
        _print_json(counts)
    else:
        print(f"written to {output}: " + ", ".join(f"{n} ({c} rows)" for n, c in counts.items()))


def _tell(run: PlannedRun, now: CampaignStatus) -> None:
    left = format_duration(now.remaining_s)
    print(f"[{now.done + 1}/{now.total}, about {left} left] {run.request}", file=sys.stderr, flush=True)


def _tell_done(run: PlannedRun, now: CampaignStatus) -> None:
    print(f"[{now.done}/{now.total}] {run.request}", file=sys.stderr, flush=True)


def _check_dry_run(options: dict[str, Any]) -> None:
    """Refuse options that say how to measure."""
    for option, value in options.items():
        if value:
            raise InputError(
                f"{option} has no effect with --dry-run, which lists the whole plan", hint="leave it out"
            )


def _dry_run(
    plan: CampaignPlan, folders: Sequence[Path], retry_failed: bool, retry_disturbed: bool, as_json: bool
) -> None:
    from profiling.campaign.slices import read_results

    results = read_results(folders)
    due = due_runs(plan, results, retry_failed, retry_disturbed)
    waiting = {plan.run_id(p) for p in due}
    now = status_before(plan, results, folders, due)
    if as_json:
        runs = [
            {"id": plan.run_id(p), **p.request.to_mapping(), "expected_s": p.expected_s, "reason": p.reason,
             "done": plan.run_id(p) not in waiting}
            for p in plan.runs
        ]  # fmt: skip
        _print_json({"runs": runs, **now.to_json()})
        return
    for planned in plan.runs:
        mark = f"{planned.expected_s:4.0f} s" if plan.run_id(planned) in waiting else "done"
        print(f"{plan.run_id(planned)}  {mark:>6}  {planned.request}  [{planned.reason}]")
    print(
        f"{now.total} runs, {now.done} done, about {format_duration(now.remaining_s)} left", file=sys.stderr
    )


def _print_status(now: CampaignStatus, as_json: bool) -> None:
    if as_json:
        _print_json(now.to_json())
        return
    disturbed = f", {now.disturbed} disturbed by other processes" if now.disturbed else ""
    print(
        f"{now.done} of {now.total} runs done ({now.failed} with a failed member{disturbed}), "
        f"about {format_duration(now.remaining_s)} left, {now.stored_bytes / 1e6:.2f} MB stored"
        + (f", {now.torn_lines} torn lines skipped" if now.torn_lines else "")
    )
    if now.disturbed:
        print(
            "note: disturbed runs say little; on an idle machine, cotenant campaign run --retry-disturbed repeats them",
            file=sys.stderr,
        )


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


def format_duration(seconds: float) -> str:
    """`45 s`, `12 min`, `1 h 05 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
