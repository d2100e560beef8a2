"""Users' own measurements: a template, and validation that reports row, column, expected and actual value."""

from __future__ import annotations

import io
import re
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets.contradictions import before_names, with_names
from datasets.schema import KEYS, TABLES, table_fields
from datasets.tables import Fault, available_tables, find_faults, read_table, write_table
from profiling.errors import ConflictError, InputError
from profiling.files import check_once, only_writer

if TYPE_CHECKING:
    import pandas as pd


_OTHER_SEPARATORS = (";", "\t", "|")
# What tells a set from another.
_SET = ["source", "campaign", "set_id"]
# The first bytes of every Parquet file.
_PARQUET = b"PAR1"


def template(table: str = "colocation") -> str:
    """A CSV with the header of `table` and example rows (for `colocation`: one set of two members).

    Derived columns (a job's options from its SPEC) are omitted.
    """
    import pandas as pd

    row = {field.name: field.example for field in table_fields(table) if not field.derived}
    rows = [row]
    if table == "colocation":
        other = {"member": 1, "workload": "lstm-wikitext2:batch_size=20"}
        rows.append(
            {
                **row,
                **other,
                "throughput_ratio": 0.71,
                "step_time_s": 0.0218,
                "solo_step_time_s": 0.0155,
            }
        )
    buffer = io.StringIO()
    pd.DataFrame(rows).to_csv(buffer, index=False)
    return buffer.getvalue()


def read_user_file(path: Path | str) -> pd.DataFrame:
    """Read a CSV (every cell as text) or Parquet file, whatever its name, without conversion.

    Raises:
        InputError: the file is missing, or neither, or has a column twice.
    """
    import pyarrow as pa

    source = Path(path)
    try:
        # Once, because it may be a pipe.
        body = source.read_bytes()
        if body.startswith(_PARQUET) or source.suffix == ".parquet":
            frame = _read_parquet(source, body)
        else:
            frame = _read_csv(source, body)
    except FileNotFoundError:
        raise InputError(f"no file at {source}", hint="check the path") from None
    except IsADirectoryError:
        raise InputError(f"{source} is a folder", expected="a CSV or Parquet file") from None
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "filename", None):  # not ours to read
            raise
        raise InputError(
            f"{source} is not Parquet",
            expected="a complete Parquet file",
            # Without what pyarrow calls the file.
            got=str(error).rpartition("': ")[2],
        ) from None
    if not len(frame):
        raise InputError(f"{source} has no rows", expected="a header and one row per measurement")
    return frame


def _read_parquet(source: Path, body: bytes) -> pd.DataFrame:
    """`body`, read from `source`; cells that are neither text nor number (lists, times) as text.

    Raises:
        ArrowException: it is no Parquet. InputError: it has a column twice.
    """
    import pandas as pd
    import pyarrow.parquet as pq

    check_once(source, pq.read_schema(io.BytesIO(body)).names)
    frame = pd.read_parquet(io.BytesIO(body))
    # Columns that pandas wrote from an index.
    frame = frame.reset_index(level=[name for name in frame.index.names if name is not None])
    for name, column in frame.items():
        if not pd.api.types.is_numeric_dtype(column) and not isinstance(column.dtype, pd.StringDtype):
            # pandas would count the nanoseconds of times, and fail on lists and structures.
            frame[name] = column.astype(object).map(
                lambda cell: cell if isinstance(cell, (str, int, float, Decimal)) else str(cell), na_action="ignore"
            )  # fmt: skip
    return frame


def _read_csv(source: Path, body: bytes) -> pd.DataFrame:
    """`body`, read from `source`; every cell as text.

    Raises:
        InputError: it is no CSV, has another separator, a column twice, or rows longer than its header.
    """
    import pandas as pd

    if not body.strip():
        raise InputError(f"{source} is empty", expected="a header and one row per measurement")
    if body.lstrip()[:1] in (b"[", b"{"):
        raise InputError(f"{source} is not CSV", expected="a CSV or Parquet file", got="JSON")

    def read(**part: Any) -> pd.DataFrame:
        return pd.read_csv(io.BytesIO(body), dtype=str, keep_default_na=False, skipinitialspace=True, **part)

    try:
        # The header as a row like others: pandas would rename a column that is there twice.
        names = read(header=None, nrows=1).iloc[0].str.strip().tolist()
        # Before the rows, whose SPECs have commas.
        _check_separator(source, ",".join(names))
        frame = read()
    except UnicodeDecodeError as error:
        raise InputError(f"{source} is not text", expected="CSV in UTF-8", got=str(error)) from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        # In the parser's words: "Error tokenizing data. C error: Expected 19 fields in line 3, saw 21".
        found = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error))
        raise InputError(
            f"{source}, line {found[2]}: not CSV" if found else f"{source} is not CSV",
            expected=f"{found[1]} cells, as in the rows before"
            if found
            else "a header and rows of equal length",
            got=f"{found[3]}" if found else str(error),
        ) from None
    check_once(source, names)
    if not isinstance(frame.index, pd.RangeIndex):
        raise InputError(
            f"{source} has rows longer than its header", expected=f"{len(frame.columns)} cells in a row"
        )
    # A space at the end of a name would make it another one.
    return frame.rename(columns=str.strip).apply(lambda cells: cells.str.strip())


def _check_separator(source: Path, header: str) -> None:
    """Raise `InputError` if the cells of `header` have something else than commas between them."""
    other = max(_OTHER_SEPARATORS, key=header.count)
    if header.count(other) > header.count(","):
        raise InputError(f"{source} has another separator", expected="commas between cells", got=repr(other))


def guess_table(frame: pd.DataFrame) -> str:
    """The table whose columns `frame` matches best, of several the one of which it lacks least; `colocation` if hardly
    any match."""
    columns = set(frame.columns)
    shared = {name: len(columns & {f.name for f in fields}) for name, fields in TABLES.items()}
    if max(shared.values()) < 2:
        return "colocation"

    def missing(name: str) -> int:
        return sum(f.required and not f.derived and f.name not in columns for f in TABLES[name])

    return max(TABLES, key=lambda name: (shared[name], -missing(name), -len(TABLES[name])))


def check_file(
    path: Path | str, table: str | None = None, to_add: bool = False
) -> tuple[str, pd.DataFrame, list[Fault]]:
    """Check one file of measurements, including the devices and models that it names (`datasets.names`).

    Args:
        path: the file.
        table: the table to check it against; guessed from the columns if None.
        to_add: whether its rows are to be added to a folder, so that their sources must be the user's own.

    Returns:
        the table against which it was checked, its rows with that table's types, and its faults (none: the
        rows are valid).

    Raises:
        InputError: the file cannot be read at all.
        UnknownNameError: no such table.
    """
    from datasets.names import with_captured_models, with_known_devices, with_known_names

    frame = read_user_file(path)
    name = table or guess_table(frame)
    typed, faults = find_faults(name, with_known_devices(with_captured_models(frame)))
    faults = faults or before_names(name, typed)
    if not faults:
        typed, faults = with_known_names(typed)
        # Two spellings of one job may have become the same row.
        faults = faults or find_faults(name, typed)[1] or with_names(name, typed)
        faults = faults or (taken_sources(typed) if to_add else [])
    return name, typed, sorted(faults, key=lambda fault: (fault.row, fault.column))


def taken_sources(frame: pd.DataFrame) -> list[Fault]:
    """One fault for each source whose rows come from an importer, from observations or with the project, at its first row:
    the next import or observation would replace them.

    What `cotenant profile` writes has the source of the bundled measurements, but a campaign of its own.
    """
    from datasets.bundled import campaigns
    from datasets.sources import OBSERVED, SOURCES
    from profiling.measure.tables import SOURCE

    source = frame["source"]
    taken = source.isin((*SOURCES, OBSERVED))
    if "campaign" in frame and (source == SOURCE).any():
        taken |= (source == SOURCE) & frame["campaign"].isin(campaigns())
    by_name = {
        SOURCE: "these rows are bundled",
        OBSERVED: "`cotenant feedback` and `data export-observations` write these rows, and replace them",
    }
    return [
        Fault(
            int(rows.index[0]) + 1,
            "source",
            f"a source name of your own ({by_name.get(str(name), f'`cotenant data import {name}` writes these rows')})",
            repr(str(name)),
        )
        for name, rows in source[taken].groupby(source[taken])
    ]


def add_rows(directory: Path | str, table: str, rows: pd.DataFrame, replace: bool = False) -> int:
    """Add valid rows to a table of `directory`.

    Sets of a campaign that are already there are replaced; rows that are already there are kept once.

    Args:
        directory: folder of tables.
        table: name of the table.
        rows: the rows.
        replace: replace all rows of the same sources.

    Returns:
        How many rows of the folder were replaced.

    Raises:
        InputError: the folder has other rows with the same key (a set id of another campaign, another value of the
            same run); nothing is written.
        ConflictError: the rows claim a source that has an importer, or the bundled rows, or another process holds
            the folder for minutes.
    """
    import pandas as pd

    taken = taken_sources(rows)
    if taken:
        raise ConflictError(
            "rows would replace imported or bundled ones",
            expected="a new source name",
            got=", ".join(fault.got for fault in taken),
        )
    replaced = 0
    with only_writer(directory):
        if table in available_tables(directory):
            old = read_table(directory, table)
            same = old["source"].isin(set(rows["source"]))
            if not replace and "set_id" in rows:
                same = _among(old[_SET], rows[_SET])
            elif not replace:
                rows = rows[~_among(rows[old.columns], old)]
                same &= False
            _check_keys(Path(directory), table, old[~same], rows)
            replaced = int(same.sum())
            parts = [part for part in (old[~same], rows) if len(part)]
            rows = pd.concat(parts, ignore_index=True)
        write_table(directory, table, rows)
    return replaced


def _check_keys(directory: Path, table: str, kept: pd.DataFrame, rows: pd.DataFrame) -> None:
    """Raise `InputError` if a row has the key of one that the folder keeps."""
    key = ["set_id"] if "set_id" in rows else list(KEYS[table])
    there = kept[_among(kept[key], rows[key])] if key else kept.iloc[:0]
    if not len(there):
        return
    import pandas as pd

    first = there.iloc[0]
    if key == ["set_id"]:
        raise InputError(
            f"{directory} has other sets with these ids",
            expected="set ids of their own, such as CAMPAIGN/0001",
            got=f"{first['set_id']}, which campaign {first['campaign']} of source {first['source']} has",
            hint="--replace replaces all rows of a source",
        )
    raise InputError(
        f"{directory} has other values of {len(there)} of these rows in table {table}",
        expected="each " + "+".join(key) + " once",
        got="/".join(str(first[name]) for name in key if not pd.isna(first[name])),
        hint="--replace replaces all rows of a source",
    )


def _among(rows: pd.DataFrame, others: pd.DataFrame) -> pd.Series[bool]:
    """Which of `rows` are equal to one of `others`; two missing values are equal."""
    import pandas as pd

    there = set(_as_tuples(others))
    return pd.Series([row in there for row in _as_tuples(rows)], index=rows.index, dtype=bool)


def _as_tuples(frame: pd.DataFrame) -> list[tuple[object, ...]]:
    """Rows as comparable tuples, in which two missing values are equal."""
    values = frame.astype(object)
    return list(values.where(values.notna(), None).itertuples(index=False, name=None))
