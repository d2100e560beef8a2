"""`cotenant compare`: several policies over one trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from serving.cli.output import JsonFlag, console, print_json
from serving.cli.simulate import (
    Belief,
    Cluster,
    Columns,
    Data,
    Kind,
    Limit,
    Model,
    Seed,
    Source,
    Trace,
    UpstreamRounds,
    parse_columns,
)


def command(
    trace: Trace,
    cluster: Cluster,
    policies: Annotated[
        str, typer.Option(help="Names, or your own `module:POLICY`, separated by commas.")
    ] = "fifo,exclusive,blind,isacpp",
    seed: Seed = 0,
    data: Data = None,
    source: Source = None,
    belief: Belief = "predictor",
    model: Model = "default",
    limit: Limit = None,
    columns: Columns = None,
    kind: Kind = "adaptive",
    upstream_rounds: UpstreamRounds = False,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder for plots and results.json.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Policies that run at the same time.")] = 1,
    ray: Annotated[
        bool, typer.Option("--ray", help="Run on Ray (the extra `ray`) instead of processes.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Run several policies over one trace: a table, and plots of completion times, queue, utilisation and Gantt.

    Example: `cotenant compare --trace synthetic:rate=30,jobs=60 --cluster small-mixed --policies fifo,isacpp -o plots`
    """
    from profiling.errors import InputError
    from scheduling.policies import check_upstream_rounds
    from scheduling.simulator.scenario import ScenarioSpec, check_policy
    from scheduling.simulator.sweep import compare

    names = [name.strip() for name in policies.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise InputError(
            "--policies is not a list of policies", expected="one or more, each once", got=repr(policies)
        )
    for name in names:
        check_policy(name)
    if upstream_rounds:
        check_upstream_rounds(names)
    spec = ScenarioSpec(
        trace,
        cluster,
        seed,
        data,
        source,
        belief,
        model,
        limit=limit,
        columns=parse_columns(columns),
        kind=kind,
        upstream_rounds=upstream_rounds,
    )
    results = compare(spec, names, workers=workers, use_ray=ray, out=out)
    if as_json:
        print_json({"policies": results})
        return
    _print(results)
    if out is not None:
        console().print(f"plots in {out}")


def _print(results: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("policy", no_wrap=True)
    for name in (
        "mean\nJCT s",
        "p99\nJCT s",
        "make-\nspan s",
        "queue\ns",
        "used",
        "re-\nstarts",
        "decision\nms",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for r in results:
        table.add_row(
            r["policy"],
            f"{r['mean_jct_s']:,.0f}",
            f"{r['p99_jct_s']:,.0f}",
            f"{r['makespan_s']:,.0f}",
            f"{r['mean_queue_s']:,.0f}",
            f"{r['utilization_ratio']:.2f}",
            str(r["restarts"]),
            f"{1e3 * r['mean_decision_s']:.2f}",
        )
    console().print(table)
