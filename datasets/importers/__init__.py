"""One importer per source: `read(folder) -> Import`; `import_source` writes the result to the tables."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets.importers.base import Import
from datasets.sources import get_source

if TYPE_CHECKING:
    import pandas as pd


def read_source(name: str, folder: Path | str) -> Import:
    """Read `folder` with the importer of source `name`.

    Raises:
        UnknownNameError: no such source.
        InputError: files are missing or malformed.
    """
    get_source(name)
    result: Import = importlib.import_module(f"datasets.importers.{name}").read(Path(folder))
    return result


def import_source(name: str, folder: Path | str, directory: Path | str) -> dict[str, Any]:
    """Read a source and write its rows to the tables of `directory`, replacing its earlier rows.

    Everything is read and validated before the first byte is written, and tables are replaced atomically.

    Returns:
        counts: read, kept by table, dropped by reason.
    """
    from profiling.files import check_folder

    check_folder(directory)
    result = read_source(name, folder)
    write_source(name, result.tables(), directory)
    return result.summary()


def write_source(name: str, tables: dict[str, pd.DataFrame], directory: Path | str) -> None:
    """Replace the rows of source `name` in every table of `directory` by `tables`.

    Raises:
        ConflictError: another process holds the folder for minutes.
    """
    from profiling.files import only_writer

    with only_writer(directory):
        replace_rows(name, tables, directory)


def replace_rows(name: str, tables: dict[str, pd.DataFrame], directory: Path | str) -> None:
    """`write_source` for a caller that is the folder's only writer."""
    from profiling.files import write_together

    merged = _merged(name, tables, directory)
    write_together({Path(directory) / f"{table}.parquet": data for table, data in merged.items()})


def _merged(name: str, tables: dict[str, pd.DataFrame], directory: Path | str) -> dict[str, bytes | None]:
    """The changed tables of `directory`, as files; None for a table without any rows left."""
    import pandas as pd

    from datasets.tables import available_tables, read_table, sources_of, table_bytes

    files: dict[str, bytes | None] = {}
    present = available_tables(directory)
    for table in {**dict.fromkeys(present), **tables}:
        if table not in tables and name not in sources_of(directory, table):
            continue
        parts = []
        if table in present:
            old = read_table(directory, table)
            parts.append(old[old["source"] != name])
        if table in tables:
            parts.append(tables[table])
        parts = [part for part in parts if len(part)]
        files[table] = table_bytes(table, pd.concat(parts, ignore_index=True)) if parts else None
    return files
