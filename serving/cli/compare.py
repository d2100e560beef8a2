"""`cotenant compare`: run several policies over one trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from serving.cli.given_options import no_effect
from serving.cli.output import JsonFlag, console, print_json, print_whole, progress
from serving.cli.simulate import (
    Belief,
    Cluster,
    Columns,
    Data,
    EarlyEnds,
    Elastic,
    JobsFile,
    Kind,
    Limit,
    Load,
    Model,
    RealismFlag,
    SavedStops,
    Seed,
    SkipInfeasible,
    Source,
    Trace,
    Tunable,
    UpstreamRounds,
    check_scenario,
    parse_columns,
    parts_of_realism,
    show_remarks,
    show_skipped,
    show_tenants,
)

_COLUMNS = {
    "mean\nJCT s": ("mean_jct_s", "{:,.0f}"),
    "p99\nJCT s": ("p99_jct_s", "{:,.0f}"),
    "make-\nspan s": ("makespan_s", "{:,.0f}"),
    "queue\ns": ("mean_queue_s", "{:,.0f}"),
    "GPU\nhours": ("gpu_hours", "{:,.1f}"),
    "used": ("utilization_ratio", "{:.2f}"),
    "re-\nstarts": ("restarts", "{:,.0f}"),
    "decision\nms": ("mean_decision_s", "{:.2f}"),
}
# Printed with a standard error when there are several seeds.
_WITH_ERROR = ("mean_jct_s", "p99_jct_s", "makespan_s")


def command(
    context: typer.Context,
    trace: Trace,
    cluster: Cluster,
    policies: Annotated[
        str, typer.Option(help="Names, or your own `module:POLICY`, separated by commas.")
    ] = "fifo,exclusive,blind,isacpp",
    seed: Seed = 0,
    seeds: Annotated[
        int,
        typer.Option(
            min=1, help="Number of seeds, starting at --seed; results are means with standard errors."
        ),
    ] = 1,
    data: Data = None,
    source: Source = None,
    belief: Belief = "predictor",
    model: Model = "default",
    limit: Limit = None,
    load: Load = None,
    loads: Annotated[
        str, typer.Option(help="Run everything at each of these loads, e.g. `.5,.7,.9`, instead of --load.")
    ] = "",
    skip_infeasible: SkipInfeasible = False,
    columns: Columns = None,
    elastic: Elastic = 0.0,
    tunable_batches: Tunable = 0.0,
    kind: Kind = "adaptive",
    upstream_rounds: UpstreamRounds = False,
    realism: RealismFlag = False,
    saved_stops: SavedStops = False,
    early_ends: EarlyEnds = "philly",
    jobs: JobsFile = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", help="Folder for plots and results.json, which is updated after each run."
        ),
    ] = None,
    gantt_filter: Annotated[
        str, typer.Option(help="Draw Gantt charts only for GPUs whose type, node or id contains this text.")
    ] = "",
    workers: Annotated[int, typer.Option(min=1, help="Number of parallel runs.")] = 1,
    ray: Annotated[
        bool, typer.Option("--ray", help="Run on Ray (the extra `ray`) instead of processes.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Run several policies over one trace: a table, and plots of completion times, queue, utilisation and Gantt.

    If a policy fails, the others still run and the exit code is 1. Ctrl-C keeps the finished runs; it is then 130.

    Example: `cotenant compare --trace synthetic:rate=30,jobs=60 --cluster small-mixed --policies fifo,isacpp --seeds 3 -o plots`
    """
    from profiling.errors import InputError
    from profiling.files import check_folder
    from scheduling.policies import check_elastic, check_upstream_rounds
    from scheduling.simulator.jobs_table import check_format, write_jobs
    from scheduling.simulator.scenario import check_policy
    from scheduling.simulator.scenario_spec import ScenarioSpec
    from scheduling.simulator.sweep import INTERRUPTED, run_all, summarize

    if out is None:
        no_effect(context, "without --out", "gantt_filter")
    if ray:
        no_effect(context, "with --ray", "workers")
    names = [name.strip() for name in policies.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise InputError(
            "--policies is not a list of policies", expected="one or more, each once", got=repr(policies)
        )
    for name in names:
        check_policy(name)
    if upstream_rounds:
        check_upstream_rounds(names)
    if elastic > 0:
        check_elastic(names)
    if jobs is not None:
        check_format(jobs)
    if out is not None:
        check_folder(out)
    spec = ScenarioSpec(
        trace, cluster, seed, data, source, belief, model, limit=limit, columns=parse_columns(columns),
        load=load, skip_infeasible=skip_infeasible, elastic=elastic, kind=kind, upstream_rounds=upstream_rounds,
        tunable=tunable_batches, realism=parts_of_realism(context, realism, saved_stops, early_ends),
    )  # fmt: skip
    check_scenario(context, trace, data, belief)
    each_load = _loads(loads, load)
    with progress() as bar:
        task = bar.add_task("building the scenario", total=len(names) * seeds * max(len(each_load), 1))

        def report(label: str, done: int, total: int, finished: int) -> None:
            share = done / total if total else 0.0
            words = f"{label}: {done:,} of {total:,} jobs" if total else label
            bar.update(task, description=words, completed=finished + share)

        runs = run_all(spec, names, workers, ray, out, seeds, report, gantt_filter, each_load)
    results = summarize(runs)
    if jobs is not None:
        done = ((r, load if r.load is None else r.load) for r in runs)
        write_jobs(jobs, [(r.policy, r.seed, at, r.result) for r, at in done if r.result is not None])
    if as_json:
        print_json({"policies": results})
    else:
        _print(results, seeds)
        for path in filter(None, (out, jobs)):
            console().print(f"wrote {path}", highlight=False, soft_wrap=True)
    for line in dict.fromkeys(f"{r['policy']} failed: {r['error']}" for r in results if "error" in r):
        typer.echo(f"cotenant: {line}", err=True)
    show_remarks(next((run.remarks for run in runs if run.remarks), ()))
    show_skipped([line for r in results for line in r.get("skipped", ())], seeds)
    show_tenants(cluster)
    if any("error" in r for r in results):
        raise typer.Exit(130 if any(run.error == INTERRUPTED for run in runs) else 1)


def _loads(text: str, load: float | None) -> list[float]:
    """The loads of `--loads`, each once."""
    from profiling.errors import InputError

    try:
        loads = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        loads = [-1.0]
    if any(not 0 < value < float("inf") for value in loads) or len(set(loads)) < len(loads):
        raise InputError(
            "--loads is not a list of loads", expected="numbers above 0, each once", got=repr(text)
        )
    if loads and load is not None:
        raise InputError("--load and --loads exclude each other", expected="--load or --loads")
    return loads


def _print(results: list[dict[str, Any]], seeds: int) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    several = any("load" in r for r in results)

    def row(r: dict[str, Any], *cells: str) -> None:
        done = len(r.get("seeds", ())) or seeds
        of_seeds = f" ({done} of {seeds} seeds)" if done < seeds else ""
        table.add_row(r["policy"] + of_seeds, *([f"{r['load']:g}"] if several else []), *cells)

    table.add_column("policy", overflow="fold")
    if several:
        table.add_column("load", justify="right")
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for r in results:
        if "jobs" not in r:
            row(r, "failed")
            continue
        errors = r.get("standard_error", {})
        cells = []
        for key, form in _COLUMNS.values():
            scale = 1e3 if key == "mean_decision_s" else 1.0
            error = f"\n±{form.format(errors[key])}" if key in errors and key in _WITH_ERROR else ""
            cells.append(form.format(scale * r[key]) + error)
        row(r, *cells)
    print_whole(table)
    if seeds > 1:
        console().print(f"means over {seeds} seeds, ± standard error", highlight=False)
