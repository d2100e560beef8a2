"""`cotenant models`: registered predictors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from serving.cli.output import JsonFlag, console, plain_table, print_json
from serving.cli.predict import ModelOption

app = typer.Typer(help="Registered predictors: list, promote, export.", no_args_is_help=True)
StoreOption = Annotated[
    str | None,
    typer.Option("--tracking-uri", help="MLflow store (default: sqlite:///mlflow.db)."),
]


@app.command("list")
def list_versions(tracking_uri: StoreOption = None, as_json: JsonFlag = False) -> None:
    """List the versions in the registry, newest first, with their error on pairs left out.

    Example: `cotenant models list`
    """
    from predictor.fitted.mlflow_registry import use_store, versions

    use_store(tracking_uri)
    rows = versions()
    if as_json:
        print_json({"versions": rows})
    elif rows:
        _show(rows, "registered predictors")
    else:
        console().print("no predictor is registered yet; train one with `cotenant train`")


@app.command()
def promote(
    version: Annotated[str, typer.Argument(help="Version, as listed by `cotenant models list`.")],
    force: Annotated[bool, typer.Option("--force", help="Promote it even if it is worse.")] = False,
    tracking_uri: StoreOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a version the champion, which `--model models:/cotenant@champion` and the service load.

    Exit code 1 means that it is worse than the current champion, or than the shipped predictor where there is none; nothing changes then.

    Example: `cotenant models promote 3`
    """
    from predictor.fitted.mlflow_registry import REGISTERED_NAME, use_store
    from predictor.fitted.mlflow_registry import promote as make_champion

    use_store(tracking_uri)
    result = make_champion(version, force)
    if as_json:
        print_json(result)
    else:
        against = "champion before" if result["champion"] else "what ships with the project"
        _show([result["version"], result["compared_with"]], f"new, and {against}")
        console().print(
            "Each error is on pairs left out of what that version learned from. On the same rows:\n"
            f"  cotenant evaluate --data TABLES --model models:/{REGISTERED_NAME}/{version}",
            highlight=False,
        )
        console().print(
            f"version {version} is the champion"
            if result["promoted"]
            else f"version {version} {_why_not(result)} and was not promoted (--force does it all the same)"
        )
    if not result["promoted"]:
        raise typer.Exit(1)


@app.command()
def export(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the files.")],
    model: ModelOption = "default",
    members: Annotated[int, typer.Option(help="Jobs per set of the exported set network.")] = 2,
    as_json: JsonFlag = False,
) -> None:
    """Write both parts as ONNX: the workload encoder, and the set network for sets of a fixed size (any number of sets).

    Each file is run in ONNX Runtime and compared with torch; beyond 1e-5 nothing is written. `export.json` names the inputs'
    columns.

    Example: `cotenant models export --model default --members 2 -o onnx`
    """
    from predictor import load_predictor
    from predictor.fitted.onnx_export import export as write_onnx

    result = write_onnx(load_predictor(model), out, members)
    if as_json:
        print_json(result)
        return
    for part in ("encoder", "set_network"):
        console().print(
            f"{out / result[part]['file']}: differs from torch by at most {result[part]['largest_difference']:.1e}"
        )


def _why_not(result: dict[str, Any]) -> str:
    if result["version"]["mape_percent"] is None:
        return "was not compared on pairs left out"
    return "is worse than the champion" if result["champion"] else "is worse than the shipped default"


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
    console().print(table)
