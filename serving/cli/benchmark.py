"""`cotenant benchmark`: run the evaluation protocols."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from profiling.errors import InputError
from serving.cli.groups import group
from serving.cli.output import JsonFlag, console, counted, headline, print_json, print_whole, progress

if TYPE_CHECKING:
    from predictor.evaluation.protocols.few_shot.catalogue import LearningCurve
    from predictor.evaluation.protocols.protocol import Protocol

app = group(
    "Run the evaluation protocols.\n\nExample: `cotenant benchmark run gavel2020-by-model --data data/`"
)


@app.command("list")
def list_(json: JsonFlag = False) -> None:
    """List the protocols and the predictors that take part in each.

    Example: `cotenant benchmark list`
    """
    from predictor.evaluation.protocols.catalogue import PROTOCOLS, taking_part
    from predictor.evaluation.protocols.few_shot.catalogue import LEARNING_CURVES

    rows: list[dict[str, Any]] = [
        {
            "name": protocol.name,
            "about": protocol.about,
            "campaigns": list(protocol.campaigns) or ["all"],
            "split": protocol.split,
            "target": protocol.target,
            "predictors": [c.name for c in taking_part(protocol)],
        }
        for protocol in PROTOCOLS.values()
    ] + [
        {
            "name": curve.name,
            "about": curve.about,
            "campaigns": list(curve.campaigns),
            "split": "few-shot",
            "target": curve.target,
            "predictors": list(curve.learners),
        }
        for curve in LEARNING_CURVES.values()
    ]
    if json:
        print_json(rows)
        return
    screen = console()
    for row in rows:
        screen.print(headline(row["name"], f"  {row['about']}"))
        screen.print(f"    {', '.join(row['predictors'])}", style="dim", highlight=False)


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="Name of the protocol; see `cotenant benchmark list`.")],
    data: Annotated[Path, typer.Option(help="Folder of tables, as `cotenant data import` writes it.")] = Path(
        "data"
    ),
    predictors: Annotated[str | None, typer.Option(help="Run only these, separated by commas.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Fits per fold, with seeds from 0.")] = 1,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for results; a stopped run resumes from it.")
    ] = Path("benchmarks/results/protocols"),
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Address of a Ray cluster to run the fits on, or `auto`."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Run a protocol for every registered predictor; stored results that are still valid are reused.

    Example: `cotenant benchmark run lucid-by-model --data data/`
    """
    from predictor.evaluation.protocols.names import check_name

    check_name(name)  # before the imports below, which take seconds
    from predictor.evaluation.protocols.few_shot.catalogue import LEARNING_CURVES

    if name in LEARNING_CURVES:
        if predictors or seeds != 1 or ray:
            raise InputError(
                f"{name} always runs all of its learners, with its own seeds",
                expected="no --predictors, --seeds or --ray",
            )
        _learning_curve(LEARNING_CURVES[name], data, out, json)
        return
    from datasets.tables import read_all
    from predictor.evaluation.protocols.catalogue import get_protocol, make_trial, taking_part
    from predictor.evaluation.protocols.on_ray import spread_on_ray
    from predictor.evaluation.protocols.report import (
        earlier_results,
        make_report,
        write_report,
    )
    from predictor.evaluation.protocols.runner import collect, make_plan, run_missing
    from profiling.campaign.console import format_duration

    protocol = get_protocol(name)
    chosen = taking_part(protocol, [p.strip() for p in predictors.split(",")] if predictors else None)
    trial = make_trial(protocol, read_all(data))
    plan = make_plan(trial, chosen, range(seeds), out / name)
    typer.echo(
        f"{name}: {len(trial.folds)} folds x {counted(seeds, 'seed')} x {len({c.contender.name for c in plan.cells})} predictors; "
        f"{len(plan.missing)} of {len(plan.cells)} fits to do, about {format_duration(plan.seconds)}",
        err=True,
    )
    with progress() as bar:
        task = bar.add_task(name, total=len(plan.missing))
        for_each: dict[str, Any] = {"advance": 1}
        run_missing(
            plan,
            lambda cell: bar.update(task, description=f"{cell.contender.name} {cell.fold.name}", **for_each),
            partial(spread_on_ray, address=ray) if ray else None,
        )
    command = f"cotenant benchmark run {name} --data DIR" + (
        f" --predictors {predictors}" if predictors else ""
    )
    command += f" --seeds {seeds}" if seeds > 1 else ""
    report = make_report(plan, collect(plan) | earlier_results(plan), command)
    files = write_report(plan, report)
    if json:
        print_json(report)
        return
    _print_report(name, protocol, report)
    typer.echo(f"wrote {', '.join(str(path) for path in files)}", err=True)


def _print_report(name: str, protocol: Protocol, report: dict[str, Any]) -> None:
    from rich.table import Table

    from datasets.targets import get_target
    from predictor.evaluation.protocols.report import HEADER, absent, table

    grid = Table(
        title=f"{name}: {protocol.about}\n(MAE, RMSE, p90 in {get_target(protocol.target).unit})",
        title_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
    )
    for column in HEADER:
        grid.add_column(column, justify="left" if column == "predictor" else "right", no_wrap=True)
    for row in table(report):
        grid.add_row(*row)
    print_whole(grid)
    for line in absent(report):
        console().print(line, highlight=False)


def _learning_curve(curve: LearningCurve, data: Path, out: Path, json: bool) -> None:
    from datasets.tables import read_all
    from profiling.files import write_json, write_whole

    def done(fold: str) -> None:
        typer.echo(fold, err=True)

    result = curve.report(read_all(data), f"cotenant benchmark run {curve.name} --data DIR", done)
    page = curve.markdown(result)
    files = (
        write_json(out / curve.name / "results.json", result),
        write_whole(out / curve.name / "results.md", page),
    )
    if json:
        print_json(result)
        return
    console().print(page, highlight=False)
    typer.echo(f"wrote {', '.join(str(path) for path in files)}", err=True)
