"""`cotenant simulate`: run one policy over a trace of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serving.cli.given_options import no_effect
from serving.cli.output import JsonFlag, console, counted, plain_table, print_json, progress

if TYPE_CHECKING:
    from scheduling.traces.remarks import RowCount

Trace = Annotated[
    str,
    typer.Option(help="A CSV or JSON log, `philly[:FILE]`, `sia:FILE`, or `synthetic:rate=...,jobs=...`."),
]
Cluster = Annotated[
    str, typer.Option(help="cluster.yaml, or `philly-2000`, `small-mixed`, `sia-64`, `a100-8`.")
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the model mix, the synthetic trace and the truth.")]
Data = Annotated[str | None, typer.Option(help="Folder of imported tables: the ground truth and the mix.")]
Source = Annotated[
    str | None,
    typer.Option(help="Source in the tables to use; required if several measured the cluster's GPU types."),
]
Belief = Annotated[str, typer.Option(help="`predictor`, `truth` for an oracle, or `constant[:RATIO]`.")]
Model = Annotated[
    str, typer.Option(help="`default`, a folder, `models:/NAME@ALIAS`, or your own `module:PREDICTOR`.")
]
Limit = Annotated[int | None, typer.Option(min=1, help="Use only this many jobs, earliest submitted first.")]
Load = Annotated[
    float | None,
    typer.Option(help="Scale arrivals so that the jobs demand this share of the cluster, e.g. 0.9."),
]
SkipInfeasible = Annotated[
    bool,
    typer.Option("--skip-infeasible", help="Skip jobs that can never run on the cluster, and list them."),
]
Elastic = Annotated[
    float,
    typer.Option(
        min=0,
        max=1,
        help="Share of jobs that optimus, pollux, sia, icefrog, or your own policy may resize, from 1 GPU to 2 or 4 "
        "times their own number.",
    ),
]
Tunable = Annotated[
    float,
    typer.Option(
        "--tunable-batches", min=0, max=1,
        help="Share of jobs that may tune their batch size, up to 4 to 32 times their own.",
    ),
]  # fmt: skip
JobsFile = Annotated[
    Path | None, typer.Option("--jobs", help="Write one row per job: FILE.csv or FILE.parquet.")
]
Columns = Annotated[
    str | None, typer.Option(help="Column names of the trace, e.g. `submit=time,duration=runtime,gpus=gpu`.")
]

RealismFlag = Annotated[
    bool,
    typer.Option(
        "--realism",
        help="Uncertain lengths, jobs that end early, nodes that fail, lost progress, costlier restarts and gangs "
        "across nodes.",
    ),
]
SavedStops = Annotated[
    bool,
    typer.Option(
        "--saved-stops",
        help="With --realism: jobs save a checkpoint before their policy stops or moves them; only node "
        "failures lose progress.",
    ),
]
EarlyEnds = Annotated[
    str,
    typer.Option(
        metavar="[philly|helios]",
        help="With --realism: the cluster whose share of killed and failed jobs to assume, 31 or 38 %.",
    ),
]
Kind = Annotated[
    str,
    typer.Option(
        help="Kind of the jobs in `sia:FILE` if the file does not say: adaptive, strong-scaling or rigid."
    ),
]
UpstreamRounds = Annotated[
    bool,
    typer.Option(
        "--upstream-rounds",
        help="Run Gavel's policies and sia with the artefacts of their public simulators.",
    ),
]


def command(
    context: typer.Context,
    trace: Trace,
    cluster: Cluster,
    policy: Annotated[
        str,
        typer.Option(
            help="fifo, sjf, srtf, tiresias, ..., isacpp, sia, or your own `module:POLICY`; "
            "on slices: full, mps, static-mig, oracle, miso, isacpp-slices."
        ),
    ] = "isacpp",
    seed: Seed = 0,
    data: Data = None,
    source: Source = None,
    belief: Belief = "predictor",
    model: Model = "default",
    limit: Limit = None,
    load: Load = None,
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
    as_json: JsonFlag = False,
) -> None:
    """Simulate a trace of jobs on a cluster under one policy.

    The policy sees predicted step times, not the actual ones.

    Example: `cotenant simulate --trace synthetic:rate=30,jobs=100 --cluster small-mixed --policy isacpp --seed 1`
    """
    from scheduling.policies import check_elastic, check_upstream_rounds
    from scheduling.simulator.assembly import build_scenario
    from scheduling.simulator.jobs_table import check_format, write_jobs
    from scheduling.simulator.scenario import check_policy
    from scheduling.simulator.scenario_spec import ScenarioSpec
    from scheduling.traces.remarks import by_reason

    check_policy(policy)
    if upstream_rounds:
        check_upstream_rounds([policy])
    if elastic > 0:
        check_elastic([policy])
    spec = ScenarioSpec(
        trace, cluster, seed, data, source, belief, model, limit=limit, columns=parse_columns(columns),
        load=load, skip_infeasible=skip_infeasible, elastic=elastic, kind=kind, upstream_rounds=upstream_rounds,
        tunable=tunable_batches, realism=parts_of_realism(context, realism, saved_stops, early_ends),
    )  # fmt: skip
    check_scenario(context, trace, data, belief)
    if jobs is not None:
        check_format(jobs)
    scenario = build_scenario(spec)
    with progress() as bar:
        task = bar.add_task(policy, total=len(scenario.jobs))
        result = scenario.run(policy, lambda done, _: bar.update(task, completed=done))
    body = result.to_json()
    if jobs is not None:
        write_jobs(jobs, [(policy, seed, load, result)])
    show_remarks(scenario.remarks)
    show_skipped(scenario.skipped)
    show_tenants(cluster)
    if as_json:
        skipped = {"skipped": scenario.skipped} if scenario.skipped else {}
        print_json(body | skipped | by_reason(scenario.remarks))
        return
    table = plain_table("figure", "value", right=("value",))
    for name, value in body.items():
        if isinstance(value, dict):  # by user
            continue
        table.add_row(name, _number(value))
    console().print(table)


def _number(value: Any) -> str:
    """Four significant digits, and no exponent for large numbers of seconds."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def show_tenants(cluster: str) -> None:
    """Say on stderr that the cluster's current tenants are not simulated."""
    from scheduling.clusters import load_cluster

    tenants = sum(len(gpu.tenants) for _, gpu in load_cluster(cluster).gpus())
    if tenants:
        typer.echo(f"ignoring {counted(tenants, 'tenant')} of {cluster}: all GPUs start empty", err=True)


def show_skipped(lines: list[str], seeds: int = 1) -> None:
    """List the skipped jobs on stderr, one line each."""
    distinct = list(dict.fromkeys(lines))  # seeds often skip the same jobs
    if distinct:
        when = ", each under one seed or more" if seeds > 1 else ""
        what = counted(len(distinct), "job")
        typer.echo(f"skipped {what} that can never run on this cluster{when}:", err=True)
    for line in distinct:
        typer.echo(f"  {line}", err=True)


def show_remarks(counts: Sequence[RowCount]) -> None:
    """Say on stderr how many rows of the log are ignored or changed, and why, one line per reason."""
    for kept, done in ((False, "ignored"), (True, "changed")):
        own = [count for count in counts if count.kept == kept]
        if own:
            rows = sum(count.rows for count in own)
            were = "was" if rows == 1 else "were"
            typer.echo(f"{counted(rows, 'row')} of the trace {were} {done}:", err=True)
        for count in own:
            typer.echo(f"  {count}", err=True)


def check_scenario(context: typer.Context, trace: str, data: str | None, belief: str) -> None:
    """Refuse options that this trace, ground truth or belief does not use."""
    if trace.startswith("sia:"):  # it comes with its own truth, and nothing is drawn
        no_effect(context, "with --trace sia:FILE", "data", "source", "belief", "model", "seed", "seeds")
    elif data is not None and belief != "predictor":
        no_effect(context, f"with --data and --belief {belief}", "model")
    if not trace.startswith("sia:"):
        no_effect(context, "without --trace sia:FILE", "kind")


def parts_of_realism(
    context: typer.Context, realism: bool, saved_stops: bool, early_ends: str
) -> tuple[str, ...]:
    """The realism requested by `--realism`, `--saved-stops` and `--early-ends`."""
    from profiling.errors import InputError

    if not realism:
        no_effect(context, "without --realism", "saved_stops", "early_ends")
        return ()
    if early_ends not in ("philly", "helios"):
        raise InputError("unknown cluster in --early-ends", expected="philly or helios", got=early_ends)
    options = {"saved-stops": saved_stops, "early-ends-helios": early_ends == "helios"}
    return ("all", *(name for name, chosen in options.items() if chosen))


def parse_columns(text: str | None) -> dict[str, str] | None:
    """Parse `key=value,...` into a mapping. Raises `InputError` if a part has no value or a key stands twice."""
    from profiling.errors import InputError

    if text is None:
        return None
    columns: dict[str, str] = {}
    for part in text.split(","):
        key, _, column = (word.strip() for word in part.partition("="))
        if not column:
            raise InputError(
                "--columns is not a mapping", expected="FIELD=COLUMN, separated by commas", got=repr(part)
            )
        if key in columns:
            raise InputError("--columns names a field twice", expected="each once", got=key)
        columns[key] = column
    return columns
