"""`cotenant zoo`: the models that come with the project."""

from __future__ import annotations

from typing import Annotated

import typer

from serving.cli.groups import group
from serving.cli.output import JsonFlag, print_json, print_whole, progress

app = group("Bundled models.\n\nExample: `cotenant zoo list`")


@app.command("list")
def list_models(
    collection: Annotated[
        str | None, typer.Option(help="List a collection of stored graphs instead: timm, torchvision, ...")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """List all models with their defaults.

    Example: `cotenant zoo list --collection timm`
    """
    if collection is not None:
        _list_collection(collection, as_json)
        return
    from profiling.zoo import get_model, zoo_names

    entries = [get_model(name) for name in zoo_names()]
    if as_json:
        print_json(
            [
                {
                    "name": e.name,
                    "family": e.family,
                    "parameters": e.parameters,
                    "batch_size": e.batch_size,
                    "sequence_length": e.sequence_length,
                    "optimizer": e.optimizer,
                    "description": e.description,
                    "source": e.source,
                }
                for e in entries
            ]
        )
        return
    from rich.table import Table

    table = Table("model", "parameters", "batch", "optimizer", "what it is", box=None, pad_edge=False)
    table.columns[0].no_wrap, table.columns[0].min_width = True, max(len(e.name) for e in entries)
    for column in (1, 2):
        table.columns[column].justify, table.columns[column].no_wrap = "right", True
    for e in entries:
        batch = f"{e.batch_size} x {e.sequence_length}" if e.sequence_length else str(e.batch_size)
        table.add_row(e.name, _count(e.parameters), batch, e.optimizer, e.description)
    print_whole(table)


def _count(parameters: int) -> str:
    """`7.62 B`, `11.2 M`, `9.8 k`."""
    for size, unit in ((1e9, "B"), (1e6, "M")):
        if parameters >= size:
            return f"{parameters / size:.3g} {unit}"
    return f"{parameters / 1e3:.3g} k"


def _list_collection(collection: str, as_json: bool) -> None:
    from datasets.families import architecture_of, family_of
    from profiling.collections import COLLECTIONS, collected_names, sizes_of
    from profiling.errors import UnknownNameError

    if collection not in COLLECTIONS:
        raise UnknownNameError("unknown collection", expected=", ".join(COLLECTIONS), got=collection)
    rows = [
        {"name": n, "family": family_of(n), "sizes": list(sizes_of(n)), "architecture": architecture_of(n)}
        for n in collected_names(collection)
    ]
    if as_json:
        print_json(rows)
        return
    width = max((len(str(row["name"])) for row in rows), default=0)
    for row in rows:
        sizes = ", ".join(map(str, row["sizes"]))
        typer.echo(f"{row['name']:{width}}  {row['architecture']}  {row['family']}  {sizes}")


@app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(help="Zoo names; all by default.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Capture models and compare their parameter counts with the published ones.

    Exit code 1 if any differ. Example: `cotenant zoo check resnet18-cifar gpt-7b`
    """
    from profiling.zoo import get_model, zoo_names
    from profiling.zoo.check import check_zoo

    chosen = [get_model(name).name for name in names] if names else zoo_names()
    with progress() as bar:
        task = bar.add_task("capture", total=len(chosen))

        def told(name: str) -> None:
            bar.update(task, description=name, completed=chosen.index(name))

        rows = check_zoo(chosen, told)
    wrong = [row for row in rows if not row.matches]
    seconds = sum(row.seconds for row in rows)
    if as_json:
        print_json(
            {
                "models": [row.to_dict() for row in rows],
                "seconds": seconds,
                "mismatches": [row.name for row in wrong],
            }
        )
    else:
        # Plain lines, because a table would truncate names and numbers when the output is not a terminal.
        width = max(len(row.name) for row in rows)
        typer.echo(
            f"{'model':{width}} {'expected':>13} {'parameters':>13} {'FLOPs':>9} {'operators':>9} {'s':>6}"
        )
        for row in rows:
            typer.echo(
                f"{row.name:{width}} {row.expected_parameters:13,} {row.parameters:13,} {row.forward_flops:9.3g} "
                f"{row.operators:9} {row.seconds:6.2f} {'ok' if row.matches else 'differs'}"
            )
        typer.echo(f"{len(rows) - len(wrong)} of {len(rows)} match, {seconds:.1f} s")
    if wrong:
        raise typer.Exit(1)
