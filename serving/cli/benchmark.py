"""`cotenant benchmark`: run the evaluation protocols."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from serving.cli.output import JsonFlag, console, print_json, progress

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help="Run the evaluation protocols.")


@app.command("list")
def list_(json: JsonFlag = False) -> None:
    """List the protocols and the predictors that take part in each.

    Example: `cotenant benchmark list`
    """
    from predictor.evaluation.protocols import solo_few_shot
    from predictor.evaluation.protocols.catalogue import PROTOCOLS
    from predictor.evaluation.protocols.few_shot import FEW_SHOT
    from predictor.evaluation.protocols.few_shot_learners import LEARNERS
    from predictor.evaluation.protocols.registry import contenders

    rows: list[dict[str, Any]] = (
        [
            {
                "name": protocol.name,
                "about": protocol.about,
                "campaigns": list(protocol.campaigns) or ["all"],
                "split": protocol.split,
                "target": protocol.target,
                "predictors": [c.name for c in contenders() if protocol.admits(c)],
            }
            for protocol in PROTOCOLS.values()
        ]
        + [
            {
                "name": few.name,
                "about": few.about,
                "campaigns": list(few.campaigns),
                "split": "few-shot",
                "target": "throughput_ratio",
                "predictors": list(LEARNERS),
            }
            for few in FEW_SHOT.values()
        ]
        + [
            {
                "name": solo_few_shot.NAME,
                "about": solo_few_shot.ABOUT,
                "campaigns": list(solo_few_shot.CAMPAIGNS),
                "split": "few-shot",
                "target": "solo_step_time_s",
                "predictors": list(solo_few_shot.LEARNERS),
            }
        ]
    )
    if json:
        print_json(rows)
        return
    screen = console()
    for row in rows:
        screen.print(f"[bold]{row['name']}[/]  {row['about']}", highlight=False)
        screen.print(f"    {', '.join(row['predictors'])}", style="dim", highlight=False)


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="Name of the protocol; see `cotenant benchmark list`.")],
    data: Annotated[Path, typer.Option(help="Folder of tables, as `cotenant data import` writes it.")] = Path(
        "data"
    ),
    predictors: Annotated[str | None, typer.Option(help="Only these, separated by commas.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Fits per fold, with seeds from 0.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for results; a stopped run resumes from it.")] = Path(
        "benchmarks/results/protocols"
    ),
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Fit on the nodes of this Ray cluster; or `auto`."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Run a protocol for every registered predictor; stored results that are still valid are not computed again.

    Example: `cotenant benchmark run lucid-by-model --data data/`
    """
    from predictor.evaluation.protocols.few_shot import FEW_SHOT
    from predictor.evaluation.protocols.solo_few_shot import NAME as SOLO_FEW_SHOT

    if name in (*FEW_SHOT, SOLO_FEW_SHOT):
        _few_shot(name, data, out, json)
        return
    from datasets.tables import read_all
    from datasets.targets import get_target
    from predictor.evaluation.protocols.catalogue import get_protocol, make_trial
    from predictor.evaluation.protocols.on_ray import spread_on_ray
    from predictor.evaluation.protocols.registry import contenders
    from predictor.evaluation.protocols.report import (
        HEADER,
        absent,
        earlier_results,
        make_report,
        table,
        write_report,
    )
    from predictor.evaluation.protocols.runner import collect, make_plan, run_missing

    protocol = get_protocol(name)
    chosen = contenders([p.strip() for p in predictors.split(",")] if predictors else None)
    trial = make_trial(protocol, read_all(data))
    plan = make_plan(trial, chosen, range(seeds), out / name)
    screen = console()
    typer.echo(
        f"{name}: {len(trial.folds)} folds x {seeds} seed(s) x {len({c.contender.name for c in plan.cells})} predictors; "
        f"{len(plan.missing)} of {len(plan.cells)} fits to do, about {_duration(plan.seconds)}",
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
    from rich.table import Table

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
    screen.print(grid)
    for line in absent(report):
        screen.print(line, highlight=False)
    typer.echo(f"wrote {', '.join(str(path) for path in files)}", err=True)


def _few_shot(name: str, data: Path, out: Path, json: bool) -> None:
    from datasets.tables import read_all
    from predictor.evaluation.protocols import few_shot, solo_few_shot
    from profiling.files import write_json, write_whole

    command = f"cotenant benchmark run {name} --data DIR"
    tables = read_all(data)

    def done(fold: str) -> None:
        typer.echo(fold, err=True)

    if name == solo_few_shot.NAME:
        result = solo_few_shot.report(tables, command, done)
        page = solo_few_shot.markdown(result)
    else:
        result = few_shot.report(few_shot.FEW_SHOT[name], tables, command, done)
        page = few_shot.markdown(result)
    files = (
        write_json(out / name / "results.json", result),
        write_whole(out / name / "results.md", page),
    )
    if json:
        print_json(result)
        return
    console().print(page, highlight=False)
    typer.echo(f"wrote {', '.join(str(path) for path in files)}", err=True)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
