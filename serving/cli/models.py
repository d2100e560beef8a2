"""`cotenant models`: registered predictors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from serving.cli.groups import group
from serving.cli.output import JsonFlag, console, counted, plain_table, print_json, print_whole
from serving.cli.predict import ModelOption
from serving.cli.training_options import ExperimentOption, StoreOption

app = group("Registered predictors: list, register, promote, export.\n\nExample: `cotenant models list`")
# Metrics shown in a comparison, with heading and format; --json has all.
_METRICS = {
    "mape_percent": ("MAPE %", ".1f"),
    "median_ape_percent": ("median APE %", ".1f"),
    "mae": ("MAE", ".3f"),
}


@app.command("list")
def list_versions(tracking_uri: StoreOption = None, as_json: JsonFlag = False) -> None:
    """List the versions in the registry, newest first, with their error on held-out pairs.

    Example: `cotenant models list`
    """
    from predictor.fitted.mlflow_address import address_of, check_store, is_absent
    from predictor.fitted.mlflow_registry import use_store, versions

    rows, address = [], address_of(tracking_uri)
    check_store(address)
    if not is_absent(address):  # MLflow takes seconds to import
        use_store(tracking_uri)
        rows = versions()
    if as_json:
        print_json({"versions": rows})
    elif rows:
        _show(rows, "registered predictors, each with its error on the pairs held out of its own training")
    else:
        console().print("no predictor registered yet; train one with `cotenant train`")


@app.command()
def register(
    folder: Annotated[Path, typer.Argument(help="Folder of a predictor (`cotenant train --out`).")],
    tracking_uri: StoreOption = None,
    experiment: ExperimentOption = "cotenant",
    as_json: JsonFlag = False,
) -> None:
    """Register a predictor that was written, but whose run could not reach the MLflow store.

    `cotenant train` registers what it writes.

    Example: `cotenant models register my-model`
    """
    from predictor.training.registering import register as register_folder

    result = register_folder(folder, tracking_uri, experiment)
    if as_json:
        print_json(result)
        return
    console().print(
        f"{'already registered as ' if result['already_registered'] else ''}version {result['version']}; MLflow run {result['run_id']} in {result['tracking_uri']}",
        highlight=False,
    )


@app.command()
def promote(
    version: Annotated[str, typer.Argument(help="Version, as listed by `cotenant models list`.")],
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="Folder of tidy tables to compare on (default: the pairs held out of its training).",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Promote it even if it is worse.")] = False,
    tracking_uri: StoreOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a version the champion, which commands and the service load with `--model models:/cotenant@champion`.

    It is compared with the current champion, or with the shipped predictor if there is none, on sets that
    neither was trained on. Exit code 1 means that it is worse or that there are no such sets; the champion then
    stays.

    Examples: `cotenant models promote 3`, `cotenant models promote 3 --data tables`
    """
    if data is not None:
        from datasets.tables import sources_of

        sources_of(data, "colocation")
    from predictor.fitted.mlflow_registry import use_store

    use_store(tracking_uri)
    from predictor.evaluation.promotion import promote as promote_version

    result = promote_version(version, data, force)
    if as_json:
        print_json(result)
    else:
        _show_promotion(result)
    if not result["promoted"]:
        raise typer.Exit(1)


@app.command()
def export(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the files.")],
    model: ModelOption = "default",
    members: Annotated[int, typer.Option(help="Jobs per set of the exported set network.")] = 2,
    as_json: JsonFlag = False,
) -> None:
    """Export both parts to ONNX: the workload encoder, and the set network for sets of a fixed size.

    The number of sets is free. Each file is run in ONNX Runtime and compared with torch; if they differ by more
    than 1e-5, nothing is written. `export.json` names the columns of the inputs.

    Example: `cotenant models export --model default --members 2 -o onnx`
    """
    from predictor import load_predictor

    predictor = load_predictor(model)  # report a wrong name before torch is imported
    from predictor.fitted.onnx_export import export as write_onnx

    result = write_onnx(predictor, out, members)
    if as_json:
        print_json(result)
        return
    for part in ("encoder", "set_network"):
        console().print(
            f"{out / result[part]['file']}: differs from torch by at most {result[part]['largest_difference']:.1e}"
        )


def _show_promotion(result: dict[str, Any]) -> None:
    out, same_rows = console(), result["same_rows"]
    version, champion = result["version"]["version"], result["champion"]
    names = {
        "challenger": f"version {version}",
        "incumbent": f"version {champion['version']} (the champion)" if champion else "the shipped predictor",
    }
    if same_rows is not None:
        title = f"{same_rows['rows']} rows of {counted(same_rows['sets'], 'set')} that neither was trained on, as predict answers"
        headings = tuple(heading for heading, _ in _METRICS.values())
        table = plain_table("", *headings, right=headings, title=title)
        for role, name in names.items():
            table.add_row(
                name, *(format(same_rows["metrics"][role][key], form) for key, (_, form) in _METRICS.items())
            )
        print_whole(table)
        points = same_rows["difference_points"]
        # A single set cannot be resampled.
        ends = f" (95 %: {points['lower']:+.1f} to {points['upper']:+.1f})" if same_rows["sets"] > 1 else ""
        out.print(f"MAPE differs by {points['value']:+.1f} points{ends}", highlight=False)
        for role, count in same_rows["left_out"].items():
            if count:
                out.print(
                    f"skipped: {counted(count, 'set')} that {names[role]} was trained on", highlight=False
                )
    if result["reason"] is not None:
        out.print(result["reason"], highlight=False)
    if result["promoted"]:
        out.print(f"version {version} is the champion", highlight=False)
    else:
        why = "cannot be compared" if same_rows is None else f"is worse than {names['incumbent']}"
        out.print(f"version {version} {why} and was not promoted (--force overrides)", highlight=False)


def _show(rows: list[dict[str, Any]], title: str) -> None:
    numbers = ("version", "champion", "MAPE %", "R2")
    table = plain_table(*numbers, "MLflow run", right=numbers, title=title)
    for row in rows:
        error, r2 = row["mape_percent"], row["r2"]
        table.add_row(
            row["version"],
            "yes" if row["champion"] else "",
            "-" if error is None else f"{error:.2f}",
            "-" if r2 is None else f"{r2:.3f}",
            row["run_id"] or "",
        )
    print_whole(table)
