"""`cotenant evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serving.cli.given_options import no_effect
from serving.cli.output import JsonFlag, console, counted, plain_table, print_json, print_whole, progress
from serving.cli.predict import ModelOption
from serving.cli.training_options import DisturbedOption, TablesOption
from serving.cli.training_progress import reporting

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

    from predictor.predictor import Predictor

SETS = "throughput-ratio"
# Target: its table, and what is scored.
TARGETS = {
    SETS: ("colocation", "co-located / solo throughput"),
    "step-time": ("solo", "seconds per step, alone"),
    "memory": ("memory", "bytes of device memory"),
    "operator-time": ("operators", "seconds of an operator"),
}
# Metrics shown, with headings short enough to leave room for a model name in 80 columns; --json has all.
_COLUMNS = {
    "n": "n",
    "mape_percent": "MAPE\n%",
    "median_ape_percent": "median\nAPE %",
    "mae": "MAE",
    "r2": "R2",
    "spearman": "Spear-\nman",
    "coverage_90": "cover-\nage",
}
# Above this number, models are grouped by family.
MANY_MODELS = 30


def command(
    context: typer.Context,
    data: TablesOption,
    model: ModelOption = "default",
    target: Annotated[
        str, typer.Option(help="throughput-ratio, step-time, memory or operator-time.")
    ] = "throughput-ratio",
    graph_only: Annotated[bool, typer.Option("--graph-only", help="Withhold all solo measurements.")] = False,
    split: Annotated[
        str, typer.Option(help="none, by-pair, by-model, by-device, by-campaign or by-source.")
    ] = "none",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split, the training and the sampling.")] = 0,
    observe: Annotated[
        int | None,
        typer.Option(
            min=0, help="Number of sets to observe first, per device, for each architecture new to the model."
        ),
    ] = None,
    probes: Annotated[
        str, typer.Option(help="Sets that --observe takes: random, or chosen as the most informative.")
    ] = "random",
    rows: Annotated[Path | None, typer.Option(help="CSV file for the scored rows.")] = None,
    disturbed: DisturbedOption = False,
    as_json: JsonFlag = False,
) -> None:
    """Score a predictor on measured rows.

    The target names the table: `throughput-ratio` scores the members of `colocation`, `step-time` the runs of
    `solo`, `memory` the rows of `memory`, `operator-time` those of `operators`. The last three are always
    predicted from graphs only. With `--observe K`, K sets of every architecture new to the model are
    observed, without refitting, and the rest are scored.

    With `--split none` the model is scored as is, on co-location sets that it was not trained on. Any other
    split trains its configuration from scratch for every fold and scores the held-out part
    (`throughput-ratio` only). `by-model` leaves a pair of two models out twice; `held out` and the rows by model
    have each job once, with its own model left out.

    With `--split none`, the line `as predict` scores the ratio that users are answered, which is at most 1. All others
    score the ratio that the row's campaign would observe (`as observed`), which may exceed 1.

    Examples: `cotenant evaluate --data tables --split by-model --json`,
    `cotenant evaluate --data tables --target step-time`
    """
    if observe is None:
        no_effect(context, "without --observe", "probes")
    if rows is not None:
        from profiling.files import check_file

        check_file(rows)
    _check(data, target, split, observe, graph_only)
    from predictor import load_predictor

    predictor = load_predictor(model)
    from datasets.sets import read_sets
    from predictor.evaluation.evaluation import evaluate
    from predictor.evaluation.observing import evaluate_observing

    scored: list[pd.DataFrame] = []
    if target != SETS:
        result = _of_rows(predictor, data, target, disturbed, scored.append)
    elif observe is not None:
        result = evaluate_observing(
            predictor, *read_sets(data, disturbed), observe, probes, seed, scored.append
        )
    else:
        with reporting(f"evaluate {split}") as report:
            result = evaluate(
                predictor, *read_sets(data, disturbed), split, seed, report, graph_only, scored.append
            )
    if rows is not None:
        _write(rows, scored)
        typer.echo(f"wrote {rows}", err=True)
    if as_json:
        print_json(result)
    elif observe is not None:
        _show_observed(result)
    else:
        _show(result)


def _of_rows(
    predictor: Predictor, data: Path, target: str, disturbed: bool, follow: Callable[[pd.DataFrame], None]
) -> dict[str, Any]:
    """Scores of rows that each have one job."""
    from datasets.sets import without_disturbed
    from datasets.tables import read_table
    from predictor.evaluation.rows import evaluate_rows

    with progress() as bar:
        task = bar.add_task(f"evaluate {target}", total=None)
        table = read_table(data, TARGETS[target][0])
        if "disturbed" in table and not disturbed:
            table = without_disturbed(table, "solo runs")
        return evaluate_rows(
            predictor, target, table, lambda done, of: bar.update(task, completed=done, total=of), follow
        )


def _write(path: Path, scored: list[pd.DataFrame]) -> None:
    import pandas as pd

    from profiling.files import write_whole

    write_whole(path, pd.concat(scored, ignore_index=True).to_csv(index=False))


def _check(data: Path, target: str, split: str, observe: int | None, graph_only: bool) -> None:
    """Reject invalid combinations before torch is imported, which takes seconds."""
    from datasets.splits import check_evaluated
    from datasets.tables import available_tables, sources_of
    from profiling.errors import InputError, UnknownNameError

    if target not in TARGETS:
        raise UnknownNameError("unknown target", expected="one of " + ", ".join(TARGETS), got=target)
    check_evaluated(split)
    if target != SETS and observe is not None:
        raise InputError(
            "--observe needs co-location sets", expected=f"--target {SETS}", got=f"--target {target}"
        )
    if observe is not None and (split != "none" or graph_only):
        raise InputError(
            "--observe scores the model as it is, with the solo measurements of the tables",
            expected="--observe without --split or --graph-only",
            got=f"--split {split}" if split != "none" else "--graph-only",
        )
    if target != SETS and split != "none":
        raise InputError(
            f"--split {split} cannot be used with --target {target}",
            expected="--split none",
            got=split,
            hint="`cotenant benchmark list` shows the protocols that hold out rows of this target",
        )
    present = available_tables(data)
    others = [name for name, (table, _) in TARGETS.items() if table in present]
    if others and target not in others:
        raise InputError(
            f"--target {target} needs the table {TARGETS[target][0]!r}",
            got="a folder with " + ", ".join(present),
            hint=f"choose --target {' or '.join(others)}",
        )
    sources_of(data, TARGETS[target][0])


def _show(result: dict[str, Any]) -> None:
    from profiling.spelling import short_hashes

    title = f"{TARGETS[result['target']][1]}, split {result['split']}"
    table = plain_table("", *_COLUMNS.values(), right=tuple(_COLUMNS.values()), title=title)
    by = ("by_family" if len(result["by_model"]) > MANY_MODELS else "by_model", "by_device")
    held_out = [("held out", result["held_out"])] if "held_out" in result else []
    answers = [("as predict", result["answers"])] if "answers" in result else []
    groups = [
        *answers,
        ("as observed" if answers else "all", result["metrics"]),
        *held_out,
        *(item for key in by for item in result[key].items()),
    ]
    for group, scores in groups:
        table.add_row(short_hashes(group), *(_cell(scores.get(name), name) for name in _COLUMNS))
    out = console()
    _say_left_out(result)
    alone, members = result.get("measured_alone"), result["metrics"]["n"]
    if alone is not None and alone < members:
        out.print(f"solo step time known for {alone} of {members} members")
    print_whole(table)
    for side, kept in result.get("bounds", {}).items():
        if isinstance(kept, dict):
            out.print(f"bounds {side}: {100 * kept['kept_ratio']:.1f} % of {kept['n']} kept")
    for reason, count in result.get("unanswered", {}).items():
        out.print(f"no answer to {count}: {reason}", highlight=False)


def _show_observed(result: dict[str, Any]) -> None:
    from profiling.spelling import short_hashes

    numbers = ("n", "MAPE %\nbefore", "MAPE %", "R2", "coverage")
    title = f"{TARGETS[SETS][1]}, {result['observe']} sets per device observed ({result['probes']})"
    table = plain_table("", *numbers, right=numbers, title=title)
    for name, part in (("all", result), *result["by_model"].items()):
        metrics = part["metrics"]
        table.add_row(
            short_hashes(name),
            str(metrics["n"]),
            _cell(part["before"]["mape_percent"]),
            *(_cell(metrics[c]) for c in ("mape_percent", "r2", "coverage_90")),
        )
    _say_left_out(result)
    print_whole(table)


def _say_left_out(result: dict[str, Any]) -> None:
    if result.get("left_out"):
        console().print(f"left out: {counted(result['left_out'], 'set')} that the model was trained on")


def _cell(value: float | int | None, metric: str = "") -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(value)
    if metric == "mae":  # of ratios, seconds or bytes
        return f"{value:.3g}"
    return f"{value:.1f}" if metric.endswith("_percent") else f"{value:.3f}"
