"""`cotenant profile`: measure jobs alone and together."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serving.cli.output import JsonFlag, console, counted, job_cell, plain_table, print_json
from serving.cli.predict import SharingOption

if TYPE_CHECKING:
    from profiling.workload import Workload

SETTINGS = {"no_args_is_help": True}


def command(
    job: Annotated[list[str], typer.Option("--job", help="Job SPEC; repeat for each member.")],
    output: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="Folder for the tables and records; earlier ones from this machine are kept.",
        ),
    ],
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    sharing: SharingOption = "time-slice",
    sm_share: Annotated[
        list[float] | None,
        typer.Option(
            help="Share of the GPU's SMs that a job may use under MPS, in (0, 1]; give it once for all "
            "jobs, or once per job."
        ),
    ] = None,
    mig: Annotated[
        bool, typer.Option("--mig", help="Run each job on its own MIG slice; same as --sharing mig.")
    ] = False,
    repeats: Annotated[int, typer.Option(help="Number of repeats.")] = 5,
    window: Annotated[float, typer.Option(help="Minimum length of a window, seconds.")] = 1.0,
    steps: Annotated[int, typer.Option(help="Minimum number of steps of every job in a window.")] = 5,
    host_input: Annotated[
        str,
        typer.Option(help="resident: reuse one batch on the device; loader: load a fresh batch every step."),
    ] = "resident",
    cached_activations: Annotated[
        bool,
        typer.Option(help="For a single job with a frozen prefix: read the prefix's output from a cache."),
    ] = False,
    operators: Annotated[
        bool,
        typer.Option(
            help="Also time the operators of every job (on all SMs), and write graphs and PipeDream files."
        ),
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Measure jobs on this machine: each alone and, with two or more, all together.

    Every job trains in its own process. On the CPU all are pinned to one core with one thread each.

    Example:

        cotenant profile --device cpu --job lstm-wikitext2:batch_size=5 --job resnet18-cifar:batch_size=4 -o measured
    """
    from dataclasses import replace

    from profiling.campaign.slices import was_disturbed
    from profiling.capture import named_workload
    from profiling.errors import InputError
    from profiling.files import check_folder, only_writer
    from profiling.measure.environment import describe_environment
    from profiling.measure.operators import export_operators
    from profiling.measure.request import RunRequest
    from profiling.measure.run import measure
    from profiling.measure.settings import MeasureSettings
    from profiling.measure.table_files import stored_records, write_tables

    workloads = _with_shares(tuple(map(named_workload, job)), sm_share or [])
    if mig and (sm_share or sharing not in ("time-slice", "mig")):
        raise InputError(
            "--mig cannot be combined with --sm-share or another --sharing", expected="one of them"
        )
    if sm_share and sharing == "time-slice":
        sharing = "mps"
    sharing = "mig" if mig else sharing
    settings = MeasureSettings(
        repeats=repeats,
        window_s=window,
        alone_window_s=max(window / 2, 1e-3),
        min_steps=steps,
        host_input=host_input,
    )
    kind = "colocation" if len(workloads) > 1 else "freezing" if workloads[0].frozen_prefix else "solo"
    requests = [RunRequest(kind, workloads, device, sharing, cached_activations)]
    if operators:
        # Alone, without MPS and so on all SMs.
        whole = dict.fromkeys(replace(w, sm_share_ratio=1.0) for w in workloads)
        requests += [RunRequest("operators", (w,), device) for w in whole]
    environment = describe_environment(device)
    campaign = f"profile-{environment['fingerprint'][:8]}"
    # Report a folder of another campaign, or one that cannot be written to, before measuring.
    check_folder(output)
    stored_records(output, campaign)
    records = []
    for request in requests:
        record = measure(request, settings, lambda text: print(text, file=sys.stderr))
        if request.kind == "operators":
            export_operators(record, output / "graphs")
        records.append(record)
    if not json:
        _print(records[0])  # first, because the folder may no longer take the results
    with only_writer(output):
        earlier = stored_records(output, campaign)
        kept = [r for r in earlier if not any(_replaces(new, r) for new in records)]
        counts = write_tables(output, [*kept, *records], campaign=campaign, environment=environment)
    if json:
        print_json({"environment": environment, "tables": counts, "records": records})
    else:
        tables = ", ".join(f"{n} ({counted(c, 'row')})" for n, c in counts.items())
        console().print(f"written to {output}: {tables}")
        for m in (m for record in records for m in record["members"] if m["outcome"] != "ok"):
            print(f"{m['workload']}: {m['outcome']}: {m['message']}", file=sys.stderr)
        for note in dict.fromkeys(note for record in records for note in record["notes"]):
            print(f"note: {note}", file=sys.stderr)
        if any(map(was_disturbed, records)):
            print(
                "note: another process used the core; on an idle machine, the same command replaces these rows",
                file=sys.stderr,
            )
    if not all(map(_succeeded, records)):
        raise typer.Exit(1)


def _succeeded(record: dict[str, Any]) -> bool:
    return all(m["outcome"] == "ok" for m in record["members"])


def _replaces(new: dict[str, Any], earlier: dict[str, Any]) -> bool:
    """Whether `new` is the same run; a failed one keeps what was measured before."""
    return new["request"] == earlier["request"] and (_succeeded(new) or not _succeeded(earlier))


def _with_shares(workloads: tuple[Workload, ...], shares: list[float]) -> tuple[Workload, ...]:
    from dataclasses import replace

    from profiling.errors import InputError

    if not shares:
        return workloads
    if len(shares) not in (1, len(workloads)):
        raise InputError(
            "--sm-share does not match --job", expected=f"1 or {len(workloads)} of them", got=len(shares)
        )
    each = shares * len(workloads) if len(shares) == 1 else shares
    return tuple(replace(w, sm_share_ratio=share) for w, share in zip(workloads, each, strict=True))


def _print(record: dict[str, Any]) -> None:
    numbers = ("alone\nms", "±\n%", "shared\nms", "slow-\ndown", "ratio", "±\n%", "MB")
    done = len(record["repeats"])
    repeats = counted(done, "repeat") if done else "no repeat finished"
    title = f"{record['device']}, {record['sharing']}, {repeats}"
    table = plain_table("job", *numbers, "verdict", right=numbers, title=title)
    for m in record["members"]:
        verdict = m.get("verdict", m.get("solo_verdict", "")) if m["outcome"] == "ok" else m["outcome"]
        table.add_row(
            job_cell(m["workload"]),
            _figure(m, "solo_step_time_s", 1e3),
            _figure(m, "solo_spread_ratio", 100, 1),
            _figure(m, "step_time_s", 1e3),
            _figure(m, "slowdown"),
            _figure(m, "throughput_ratio"),
            _figure(m, "spread_ratio", 100, 1),
            _figure(m, "memory_bytes", 1e-6, 0),
            verdict,
        )
    console().print(table)


def _figure(member: dict[str, Any], name: str, scale: float = 1.0, digits: int = 3) -> str:
    value = member.get(name)
    return "" if value is None else f"{value * scale:.{digits}f}"
