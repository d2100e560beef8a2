"""`cotenant evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from serving.cli.output import JsonFlag, console, print_json
from serving.cli.predict import ModelOption


def command(
    data: Annotated[Path, typer.Option("--data", help="Folder of tidy tables (`cotenant data import`).")],
    model: ModelOption = "default",
    split: Annotated[
        str, typer.Option(help="none, by-pair, by-model, by-device, by-campaign or by-source.")
    ] = "none",
    seed: Annotated[int, typer.Option(min=0, help="Of the split and of the training.")] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Score a predictor on measured sets.

    With `--split none` the model is asked as it is about every set that it was not trained on. Any other split fits its
    configuration from scratch for every fold and scores what was left out.

    Example: `cotenant evaluate --data tables --split by-model --json`
    """
    from datasets.tables import read_table
    from predictor import load_predictor
    from predictor.evaluation.evaluation import evaluate
    from serving.cli.train import reporting

    colocation, solo = read_table(data, "colocation"), read_table(data, "solo")
    predictor = load_predictor(model)
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


def _cell(value: float | int | None) -> str:
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.3f}"
