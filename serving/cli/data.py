"""`cotenant data`: import, describe and check measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from serving.cli.output import JsonFlag, console, print_json, progress

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", help="Import, describe and check measurements."
)


@app.command("import")
def import_(
    source: Annotated[str, typer.Argument(help="Name of the source; see `cotenant data sources`.")],
    src: Annotated[Path, typer.Argument(help="A clone of upstream, or a folder with its files by name.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the tables; other sources stay there.")],
    json: JsonFlag = False,
) -> None:
    """Import others' measurements into tidy tables (Parquet).

    Example: `cotenant data import gavel ~/gavel -o data/`
    """
    from datasets.importers import import_source

    with progress() as bar:
        bar.add_task(f"reading {source} from {src}", total=None)
        summary = import_source(source, src, out)
    if json:
        print_json(summary)
        return
    screen = console()
    screen.print(f"[bold]{source}[/] ({summary['licence']}): {summary['read']} measurements read")
    for table, count in summary["kept"].items():
        screen.print(f"  kept     {count:6d}  rows in {out / (table + '.parquet')}")
    for reason, count in summary["flagged"].items():
        screen.print(f"  flagged  {count:6d}  {reason}")
    for reason, count in summary["dropped"].items():
        screen.print(f"  dropped  {count:6d}  {reason}")
    for note in summary["notes"]:
        screen.print(f"  note: {note}", highlight=False)


@app.command()
def sources(json: JsonFlag = False) -> None:
    """Whose measurements can be imported, where they are, and what their licences allow.

    Example: `cotenant data sources`
    """
    from dataclasses import asdict

    from datasets.sources import SOURCES

    if json:
        print_json([asdict(source) for source in SOURCES.values()])
        return
    screen = console()
    for source in SOURCES.values():
        screen.print(f"[bold]{source.name}[/]  {source.holds}", highlight=False)
        screen.print(f"    clone    {source.upstream or '(no public place)'}", highlight=False)
        screen.print(f"    licence  {source.licence}: {source.use}", highlight=False)
        screen.print(f"    shipped models may be trained on it: {'yes' if source.may_ship else 'no'}")
        screen.print(f"    reads    {', '.join(source.files)}", highlight=False)
