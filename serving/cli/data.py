"""`cotenant data`: import, describe and check measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from datasets.schema import TABLES, table_fields
from serving.cli.given_options import no_effect
from serving.cli.groups import group
from serving.cli.output import Force, JsonFlag, console, counted, headline, print_json, print_whole, progress

app = group(
    "Import, describe and check measurements.\n\nExample: `cotenant data import gavel gavel/ -o data/`"
)


@app.command("import")
def import_(
    source: Annotated[str, typer.Argument(help="Name of the source; see `cotenant data sources`.")],
    folder: Annotated[
        Path, typer.Argument(help="A clone of the upstream repository, or a folder with its files.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of the tables; rows of other sources are kept.")
    ],
    json: JsonFlag = False,
) -> None:
    """Import published measurements into tidy tables (Parquet).

    Example: `cotenant data import gavel ~/gavel -o data/`
    """
    from datasets.importers import import_source

    with progress() as bar:
        bar.add_task(f"reading {source} from {folder}", total=None)
        summary = import_source(source, folder, out)
    if json:
        print_json(summary)
        return
    screen = console()
    screen.print(headline(source, f" ({summary['licence']}): {summary['read']} measurements read"))
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
    """List the sources that can be imported, where to get them, and what their licences allow.

    Example: `cotenant data sources`
    """
    from dataclasses import asdict

    from datasets.sources import SOURCES

    if json:
        print_json([asdict(source) for source in SOURCES.values()])
        return
    screen = console()
    for source in SOURCES.values():
        screen.print(headline(source.name, f"  {source.holds}"))
        screen.print(f"    clone    {source.upstream or '(not public)'}", highlight=False)
        screen.print(f"    licence  {source.licence}: {source.use}", highlight=False)
        screen.print(f"    shipped models may be trained on it: {'yes' if source.may_ship else 'no'}")
        screen.print(f"    reads    {', '.join(source.files)}", highlight=False)


@app.command()
def stats(
    directory: Annotated[Path, typer.Argument(help="Folder of tables, as `cotenant data import` writes it.")],
    plot: Annotated[Path | None, typer.Option(help="Write the distributions to this SVG file.")] = None,
    json: JsonFlag = False,
) -> None:
    """Show what a folder of tables holds.

    Example: `cotenant data stats data/ --plot data.svg`
    """
    from datasets.stats import describe
    from datasets.stats import plot as draw
    from datasets.tables import read_all
    from profiling.errors import InputError
    from profiling.files import check_file, write_whole

    if plot is not None:
        if plot.suffix.lower() != ".svg":
            raise InputError("unknown picture type", expected=".svg", got=plot.suffix or str(plot))
        check_file(plot)
    tables = read_all(directory)
    summary = describe(tables)
    if plot is not None:
        write_whole(plot, draw(tables))
        typer.echo(f"wrote {plot}", err=True)
    if json:
        print_json(summary)
        return
    from rich.table import Table

    screen = console()
    for name, table in summary["tables"].items():
        parts = ", ".join(f"{campaign} {count}" for campaign, count in table["campaigns"].items())
        screen.print(headline(name, f" {table['rows']} rows: {parts}"))
    columns = ("campaign", "devices", "sets", "points", "censored", "partners", "models", "mean", "p5-p95")
    grid = Table(
        title="co-location: co-located / solo throughput",
        title_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
    )
    for column in columns:
        grid.add_column(column, justify="left" if column in ("campaign", "devices") else "right")
    for row in summary["colocation"]:
        known = row["ratio_mean"] is not None
        grid.add_row(
            row["campaign"],
            " ".join(row["devices"]),
            *(str(row[key]) for key in ("sets", "points", "censored", "partners_only", "architectures")),
            f"{row['ratio_mean']:.2f}" if known else "-",
            f"{row['ratio_p5']:.2f}-{row['ratio_p95']:.2f}" if known else "-",
        )
    if summary["colocation"]:
        print_whole(grid)
    elif not summary["tables"]:
        screen.print(f"the tables in {directory} have no rows")


@app.command()
def validate(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="CSV or Parquet file.")],
    table: Annotated[
        str | None, typer.Option(help="Table to validate against (default: guessed from the columns).")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="If valid, add its rows to this folder; existing sets are replaced.",
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="With --out: replace all rows of the same sources.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of faults to print.")] = 20,
    json: JsonFlag = False,
) -> None:
    """Check a file of measurements and print every fault: row, column, expected and actual value.

    Exit code 2 if there are any. Step times over 100 times longer or shorter than predicted are noted, not refused;
    so are ratios that look like slowdowns and, with --out, solo runs that contradict sets.

    Example: `cotenant data validate mine.csv -o data/`
    """
    from dataclasses import asdict

    from datasets.contradictions import like_slowdowns, unlike_alone
    from datasets.tables import available_tables, read_table
    from datasets.user_files import add_rows, check_file, taken_sources
    from predictor.examples.plausibility import implausible_rows
    from profiling.spelling import short_hashes

    if out is None:
        no_effect(context, "without --out", "replace")
    name, rows, faults = check_file(file, table, to_add=out is not None)
    added = out is not None and not faults
    replaced = add_rows(out, name, rows, replace) if out is not None and added else 0
    notes = [] if faults else implausible_rows(rows)
    for row, note in notes[:limit]:
        typer.echo(f"note: {file}, row {row}: {note}; check that it is in seconds per step", err=True)
    if len(notes) > limit:
        typer.echo(f"note: {len(notes) - limit} more step times are far from predicted", err=True)
    of_file = [] if faults else [like_slowdowns(rows)]
    other = {"colocation": "solo", "solo": "colocation"}.get(name)
    if out is not None and not faults and other in available_tables(out):
        of_file.append(unlike_alone(**{name: rows, other: read_table(out, other)}))
    for said in filter(None, of_file):
        typer.echo(f"note: {file}: {said}", err=True)
        notes.append((1, said))
    # An importer's own files are valid, but no rows of the user's.
    taken = [
        (f.row, f"--out would refuse source {f.got}") for f in (taken_sources(rows) if not faults else [])
    ]
    for row, note in taken:
        typer.echo(
            f"note: {file}, row {row}: {note}; choose another source for your own measurements", err=True
        )
    if json:
        print_json(
            {
                "table": name,
                "rows": len(rows),
                "valid": not faults,
                **({"replaced": replaced} if added else {}),
                "faults": [asdict(f) for f in faults],
                "notes": [{"row": row, "note": note} for row, note in sorted(notes + taken)],
            }
        )
    elif faults:
        for fault in faults[:limit]:
            typer.echo(f"{file}, {short_hashes(str(fault))}")
        more = f", {len(faults) - limit} not shown" if len(faults) > limit else ""
        guessed = "" if table else " (guessed from the columns; --table names another)"
        typer.echo(f"{counted(len(faults), 'fault')} against table {name}{guessed}{more}")
        typer.echo(f"the columns: cotenant data template --table {name} --describe")
    else:
        typer.echo(
            f"{file}: {counted(len(rows), 'row')}, valid for table {name}"
            + (f", added to {out}" if out else "")
            + (f" in place of {counted(replaced, 'row')}" if replaced else "")
        )
    if faults:
        raise typer.Exit(2)


@app.command()
def graphs(
    directory: Annotated[Path, typer.Argument(help="Folder of tables, as `cotenant data import` writes it.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of built datasets.")],
    json: JsonFlag = False,
) -> None:
    """Build a PyTorch Geometric dataset: co-location sets, each member with its computation graph.

    The graphs of jobs measured alone are stored with them. Pass the printed folder to `cotenant train
    --graphs`. Rows built before are reused. Example: `cotenant data graphs data/ -o graphs/`
    """
    from datasets.graph_dataset import ColocationDataset
    from datasets.sets import read_sets

    colocation, solo = read_sets(directory)
    with progress() as bar:
        task = bar.add_task("capture", total=None)
        dataset = ColocationDataset(
            out,
            colocation,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
            workloads=solo["workload"],
        )
    counts = {
        "sets": len(dataset),
        "workloads": len(dataset.index["workloads"]),
        "graphs": dataset.graph_count,
    }
    if json:
        print_json({"folder": str(dataset.folder), **counts})
    else:
        parts = ", ".join(counted(count, things.removesuffix("s")) for things, count in counts.items())
        typer.echo(f"{dataset.folder}: {parts}")


@app.command()
def template(
    table: Annotated[str, typer.Option(help=f"Table: {', '.join(TABLES)}.")] = "colocation",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write here instead of printing.")] = None,
    describe: Annotated[
        bool, typer.Option("--describe", help="Describe the columns instead of printing the CSV.")
    ] = False,
    force: Force = False,
) -> None:
    """Print a CSV to fill in with your own measurements.

    Example: `cotenant data template -o mine.csv`
    """
    from datasets.user_files import template as make
    from profiling.files import check_new, write_whole

    lines = (f"{field.name}: {field.meaning}; {field.expected}\n" for field in table_fields(table))
    text = "".join(lines) if describe else make(table)
    if out is None:
        typer.echo(text, nl=False)
    else:
        check_new(out, force)
        write_whole(out, text)
        typer.echo(f"wrote {out}", err=True)


@app.command("export-observations")
def export_observations(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of the tables; rows of other sources are kept.")
    ],
    database: Annotated[
        str,
        typer.Option(
            "--database",
            envvar="COTENANT_DATABASE",
            help="Database of the service: sqlite:///FILE or postgresql+psycopg://USER@HOST/NAME.",
        ),
    ] = "sqlite:///cotenant.db",
    also: Annotated[
        list[str] | None,
        typer.Option(
            help="Database of another service, whose observations go to the same rows; may be repeated."
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Write the observations stored by a service as tidy tables for `cotenant train --data`.

    They replace earlier rows of the same databases in the folder; a folder with rows of other databases is refused. The
    service skips observations that its model was trained on. Exit code 1 if there are none.

    Example: `cotenant data export-observations --database sqlite:///cotenant.db -o data/`
    """
    from predictor.examples.observations import apart
    from predictor.examples.observed_rows import write_training_tables
    from profiling.errors import InputError
    from serving.store import Store, check_exists
    from serving.store.observations import read_stored

    urls = list(dict.fromkeys((database, *(also or []))))  # one given twice would count twice
    for url in urls:
        check_exists(url)
    stores = [Store(url) for url in urls]
    stored = [row.observation for store in stores for row in read_stored(store)]
    observations, _ = apart(one for one in stored if not isinstance(one, InputError))
    refused = [one for one in stored if isinstance(one, InputError)]
    if refused:
        typer.echo(
            f"note: {len(refused)} of {len(stored)} were skipped, the first: {refused[0].message}", err=True
        )
    written = write_training_tables(observations, out, [store.name for store in stores])
    kept = any(written.values())
    if json:
        print_json({"observations": len(observations), **written, "directory": str(out)})
    else:
        rows = ", ".join(f"{count} rows of {name}" for name, count in written.items())
        where = f" in {out}" if kept else ""
        typer.echo(f"{len(observations)} observations: {rows}{where}")
    if not kept:
        raise typer.Exit(1)
