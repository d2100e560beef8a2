"""`cotenant evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from serving.cli.output import JsonFlag, console, print_json
from serving.cli.predict import ModelOption

if TYPE_CHECKING:
    import pandas as pd

    from predictor import Predictor


def command(
    data: Annotated[Path, typer.Option("--data", help="Folder of tidy tables (`cotenant data import`).")],
    model: ModelOption = "default",
    split: Annotated[
        str, typer.Option(help="none, by-pair, by-model, by-device, by-campaign or by-source.")
    ] = "none",
    seed: Annotated[int, typer.Option(min=0, help="Of the split, of the training and of the draw.")] = 0,
    observe: Annotated[
        int | None,
        typer.Option(
            min=0, help="Sets per device of each architecture new to the model that are observed first."
        ),
    ] = None,
    probes: Annotated[
        str, typer.Option(help="Which sets --observe takes: random, or chosen to learn most.")
    ] = "random",
    as_json: JsonFlag = False,
) -> None:
    """Score a predictor on measured sets.

    With `--split none` the model is asked as it is about every set that it was not trained on. Any other split fits its
    configuration from scratch for every fold and scores what was left out. With `--observe K` some sets of every
    architecture that the model has not learned from are observed, without refitting, and the rest is scored.

    Example: `cotenant evaluate --data tables --split by-model --json`
    """
    from datasets.tables import read_table
    from predictor import load_predictor
    from predictor.evaluation.evaluation import evaluate
    from serving.cli.train import reporting

    colocation, solo = read_table(data, "colocation"), read_table(data, "solo")
    predictor = load_predictor(model)
    if observe is not None:
        _observing(predictor, colocation, solo, observe, probes, seed, as_json)
        return
    with reporting(f"evaluate {split}") as report:
        result = evaluate(predictor, colocation, solo, split, seed, report)
    if as_json:
        print_json(result)
        return
    from rich.table import Table

    table = Table(title=f"co-located / solo throughput, split {split}")
    columns = ("n", "mape_percent", "mae", "rmse", "r2", "spearman", "coverage_90", "median_width")
    for name in ("", *columns):
        table.add_column(name, justify="left" if not name else "right")
    groups = [("all", result["metrics"]), *result["by_model"].items(), *result["by_device"].items()]
    for name, scores in groups:
        table.add_row(name, *(_cell(scores.get(c)) for c in columns))
    out = console()
    if "left_out" in result:
        out.print(f"{result['left_out']} sets were trained on and are left out")
    out.print(table)


def _observing(
    predictor: Predictor,
    colocation: pd.DataFrame,
    solo: pd.DataFrame,
    observe: int,
    probes: str,
    seed: int,
    as_json: bool,
) -> None:
    from predictor.evaluation.observing import evaluate_observing

    result = evaluate_observing(predictor, colocation, solo, observe, probes, seed)
    if as_json:
        print_json(result)
        return
    from rich.table import Table

    table = Table(title=f"co-located / solo throughput, {observe} sets per device observed ({probes})")
    for name in ("", "n", "MAPE % before", "MAPE %", "R2", "coverage"):
        table.add_column(name, justify="left" if not name else "right")
    for name, part in (("all", result), *result["by_model"].items()):
        metrics = part["metrics"]
        table.add_row(
            name,
            str(metrics["n"]),
            _cell(part["before"]["mape_percent"]),
            *(_cell(metrics[c]) for c in ("mape_percent", "r2", "coverage_90")),
        )
    console().print(table)


def _cell(value: float | int | None) -> str:
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.3f}"
