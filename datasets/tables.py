"""Reads and writes the tidy tables: Parquet, validated both ways, written atomically."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets.derived import columns_of, fill_derived
from datasets.fields import DTYPES, Field
from datasets.schema import KEYS, ONE_OF, SET_COLUMNS, TABLES, pandera_schema, table_fields
from profiling.errors import InputError
from profiling.files import write_whole
from profiling.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

MAX_ROWS = 20_000_000
# Faults that `find_faults` lists.
MOST_FAULTS = 1000


@dataclass(frozen=True, slots=True)
class Fault:
    """An invalid cell or row. `row` counts data rows from 1; 0 means the whole column."""

    row: int
    column: str
    expected: str
    got: str

    @property
    def where(self) -> str:
        return f"row {self.row}, column {self.column}" if self.row else f"column {self.column}"

    def __str__(self) -> str:
        return f"{self.where}: expected {self.expected}, got {self.got}"


def empty_table(name: str) -> pd.DataFrame:
    """A table without rows, with its columns and types."""
    return _typed(name, {field.name: [] for field in table_fields(name)})


def make_table(name: str, rows: list[dict[str, Any]]) -> pd.DataFrame:
    """A validated table of `rows`; keys missing from a row are empty cells, or derived.

    Raises:
        InputError: a row violates the schema.
    """
    data = {field.name: [row.get(field.name) for row in rows] for field in table_fields(name)}
    return validate_table(name, _typed(name, data))


def _typed(name: str, data: dict[str, list[Any]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(
        {
            # A missing derived flag is not yet known to be false.
            f.name: pd.Series(
                data[f.name],
                dtype=object if f.derived and f.kind == "flag" and data[f.name] else DTYPES[f.kind],
            )
            for f in table_fields(name)
        }
    )


def find_faults(name: str, frame: pd.DataFrame) -> tuple[pd.DataFrame, list[Fault]]:
    """Convert `frame` (of any types, as from a CSV) to the table's types and list all faults.

    Args:
        name: name of the table.
        frame: the rows.

    Returns:
        the typed frame (columns in order, meaningless where there are faults) and at most `MOST_FAULTS` faults,
        by row.
    """
    import pandas as pd

    fields = table_fields(name)
    data, faults = _converted(fields, frame)
    contradictions = [
        Fault(row + 1, column, f"{follows}, as the row's other columns say", _shown(got))
        for row, column, follows, got in fill_derived(fields, data)[:MOST_FAULTS]
    ]
    typed = pd.DataFrame(data)
    if any(fault.row == 0 for fault in faults):
        return typed, faults[:MOST_FAULTS]
    faults += _bad_specs(typed)
    told = {(fault.row, fault.column) for fault in faults}
    # Do not report derived columns as missing if the SPEC itself is invalid.
    told |= {(f.row, d.name) for f in faults if f.column == "workload" for d in fields if d.derived}
    typed, violations = _checked(name, typed)
    # An unreadable cell is empty by now, and already reported.
    faults += [fault for fault in violations if (fault.row, fault.column) not in told]
    if not violations:
        faults += _row_faults(name, typed)
    told |= {(fault.row, fault.column) for fault in faults}
    faults += [fault for fault in contradictions if (fault.row, fault.column) not in told]
    return typed, sorted(faults, key=lambda f: (f.row, f.column))[:MOST_FAULTS]


def _converted(fields: Sequence[Field], frame: pd.DataFrame) -> tuple[dict[str, Any], list[Fault]]:
    """The columns by name, each converted to its type, and what is unknown, missing or cannot be converted."""
    import pandas as pd

    names = [field.name for field in fields]
    faults = [
        Fault(0, str(column), "one of " + ", ".join(names), "an unknown column")
        for column in frame.columns
        if column not in names
    ]
    data: dict[str, Any] = {}
    for field in fields:
        if field.name in frame:
            data[field.name], bad = _cells(field, frame[field.name].reset_index(drop=True))
            faults += [
                Fault(row + 1, field.name, field.expected, _shown(got)) for row, got in bad[:MOST_FAULTS]
            ]
        elif field.required and not field.derived:
            faults.append(Fault(0, field.name, field.expected, "no such column"))
        else:
            dtype = object if field.derived else DTYPES[field.kind]
            data[field.name] = pd.Series([None] * len(frame), dtype=dtype)
    return data, faults


def _checked(name: str, typed: pd.DataFrame) -> tuple[pd.DataFrame, list[Fault]]:
    """The rows as the table's schema gives them, and what violates it."""
    import pandas as pd
    import pandera.pandas as pandera

    try:
        return pandera_schema(name).validate(typed, lazy=True), []
    except pandera.errors.SchemaErrors as error:
        cases = error.failure_cases.drop_duplicates(["column", "index"]).head(MOST_FAULTS)
    fields = {field.name: field for field in table_fields(name)}
    faults = []
    for case in cases.to_dict("records"):
        field, value = fields.get(case["column"]), case["failure_case"]
        if field and field.kind == "integer" and not pd.isna(value):
            # One column of pandera's holds the values of all, so integers may be floats there.
            value = int(value)
        faults.append(
            Fault(
                0 if pd.isna(case["index"]) else int(case["index"]) + 1,
                str(case["column"]),
                field.expected if field else str(case["check"]),
                "nothing" if pd.isna(value) else _shown(value),
            )
        )
    return typed, faults


def _shown(value: Any) -> str:
    """A cell for people: `1.5`, not `np.float64(1.5)`."""
    return repr(value.item() if hasattr(value, "item") else value)


def _cells(field: Field, column: pd.Series) -> tuple[pd.Series, list[tuple[int, Any]]]:
    """A column converted to its type, and (row, value) of cells that cannot be converted."""
    import numpy as np
    import pandas as pd

    missing = column.isna()
    already_typed = field.kind != "flag" and column.dtype == DTYPES[field.kind]
    if already_typed and (field.kind != "text" or not column.str.strip().eq("").any()):
        # Already typed by `read_table`, so only check for missing values.
        lacking = missing & (field.required and not field.derived)
        return column, [(int(row), None) for row in np.flatnonzero(lacking)]
    if isinstance(column.dtype, pd.StringDtype):
        missing |= column.str.strip().eq("").fillna(True).astype(bool)
    elif not pd.api.types.is_numeric_dtype(column):
        missing |= column.astype(object).map(lambda v: isinstance(v, str) and not v.strip())
    if field.kind == "text":
        bad = list(np.flatnonzero(missing)) if field.required and not field.derived else []
        if not isinstance(column.dtype, pd.StringDtype):
            values = column.astype(object).where(~missing, None)
            column = pd.Series(values.map(lambda v: v if v is None else str(v)), dtype="str")
        typed: pd.Series = column.where(~missing).astype("str")
    elif field.kind == "flag":
        if column.dtype == bool:
            return column, []
        words = {"true": True, "false": False, "1": True, "0": False}
        mapped = column.astype(object).map(lambda v: words.get(str(v).strip().lower()))
        bad = list(np.flatnonzero(mapped.isna() & ~(missing & (field.derived or not field.required))))
        typed = mapped if field.derived else mapped.map(bool)
    else:
        numbers = pd.to_numeric(column.where(~missing, None), errors="coerce").astype("float64")
        wrong = ~missing & numbers.isna()
        if field.kind == "integer":
            wrong |= numbers.notna() & ((numbers % 1 != 0) | (numbers.abs() >= 2.0**63))
        bad = list(np.flatnonzero(wrong | (missing & (field.required and not field.derived))))
        typed = numbers.where(~wrong)
        if field.kind == "integer":
            typed = typed.astype("Int64")
    return typed, [(int(row), None if missing.iloc[row] else column.iloc[row]) for row in bad]


def _bad_specs(frame: pd.DataFrame) -> list[Fault]:
    """Rows whose SPEC does not parse."""
    faults: list[Fault] = []
    if "workload" not in frame:
        return faults
    specs = frame["workload"].astype(object)
    for position, spec in enumerate(specs.where(specs.notna(), "").tolist(), 1):
        if spec and not columns_of(spec):
            try:
                Workload.parse(spec)
            except InputError as error:
                faults.append(Fault(position, "workload", "a job SPEC", error.message))
    return faults


def _row_faults(name: str, frame: pd.DataFrame) -> list[Fault]:
    """Faults across a row or set: duplicate keys, rows without a value, contradictory sets."""
    faults: list[Fault] = []
    key = list(KEYS[name])
    if key:
        first: dict[str, int] = {}
        for row in frame.index[frame.duplicated(key, keep=False)]:
            value = "/".join(map(str, frame.loc[row, key]))
            earlier = first.setdefault(value, int(row) + 1)
            if earlier != int(row) + 1:
                got = f"{value}, as in row {earlier}"
                faults.append(Fault(int(row) + 1, "+".join(key), "each key once", got))
    if name in ONE_OF:
        empty = frame.index[frame[list(ONE_OF[name])].isna().all(axis=1)]
        faults += [
            Fault(int(row) + 1, "+".join(ONE_OF[name]), "a value in at least one", "none") for row in empty
        ]
    if name in SET_COLUMNS and len(frame):
        sets = frame.groupby("set_id", sort=False)
        for column in SET_COLUMNS[name]:
            differs = sets[column].nunique(dropna=False)
            for set_id in differs.index[differs > 1]:
                row = int(sets.groups[set_id][1]) + 1
                faults.append(Fault(row, column, f"one value for all members of set {set_id}", "several"))
    return faults + (_incomplete_sets(frame) if name == "colocation" else [])


def _incomplete_sets(frame: pd.DataFrame) -> list[Fault]:
    """Sets that lack a member, which would be treated as smaller ones."""
    members = frame.groupby("set_id", sort=False)["member"]
    count, last = members.nunique(), members.max()
    return [
        Fault(
            int(members.groups[set_id][0]) + 1,
            "member",
            f"rows for members 0 to {last[set_id]} of set {set_id}",
            f"{count[set_id]} of them",
        )
        for set_id in count.index[count <= last]
    ]


def validate_table(name: str, frame: pd.DataFrame, where: str | None = None) -> pd.DataFrame:
    """Convert `frame` to the table's types and column order.

    Raises:
        InputError: the first fault (row, column, expected, got), and how many there are.
    """
    typed, faults = find_faults(name, frame)
    if faults:
        first = faults[0]
        more = f"{len(faults) - 1} more; see `cotenant data validate`" if len(faults) > 1 else None
        raise InputError(
            f"{where or 'table ' + name}, {first.where}", expected=first.expected, got=first.got, hint=more
        )
    return typed


def write_table(directory: Path | str, name: str, frame: pd.DataFrame) -> Path:
    """Validate `frame` and write it to `directory/name.parquet` atomically.

    Raises:
        InputError: the frame violates the schema; nothing is written.
    """
    return write_whole(Path(directory) / f"{name}.parquet", table_bytes(name, frame))


def table_bytes(name: str, frame: pd.DataFrame) -> bytes:
    """The Parquet file of a validated `frame`; equal frames give equal bytes."""
    buffer = io.BytesIO()
    validate_table(name, frame).to_parquet(buffer, engine="pyarrow", compression="zstd", index=False)
    return buffer.getvalue()


def read_table(directory: Path | str, name: str) -> pd.DataFrame:
    """Read and validate `directory/name.parquet`.

    Columns that were missing when it was written are derived or empty.

    Raises:
        InputError: the table does not exist, is not Parquet, or violates the schema.
    """
    table_fields(name)
    path = Path(directory) / f"{name}.parquet"
    return validate_table(name, read_parquet(path), where=str(path))


def sources_of(directory: Path | str, name: str) -> set[str]:
    """Sources with rows in `directory/name.parquet`.

    Raises:
        InputError: the table does not exist, is not Parquet, is too long, or lacks the column.
    """
    frame = read_parquet(Path(directory) / f"{name}.parquet", ["source"])
    return set(frame["source"].astype(str))


def read_parquet(path: Path, columns: list[str] | None = None) -> pd.DataFrame:
    """Read the file of a table, or some columns of it, without validation.

    Raises:
        InputError: it (or its folder) does not exist, is not Parquet, is too long, or lacks one of `columns`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            if file.metadata.num_rows > MAX_ROWS:
                raise InputError(
                    f"{path} is too long", expected=f"at most {MAX_ROWS} rows", got=file.metadata.num_rows
                )
            frame: pd.DataFrame = file.read(columns=columns).to_pandas()
    except FileNotFoundError:
        check_tables_folder(path.parent)
        present = ", ".join(available_tables(path.parent)) or "no tables"
        raise InputError(
            f"no table {path.stem!r} in {path.parent}",
            got=present,
            hint="import data first: cotenant data import --help",
        ) from None
    except NotADirectoryError:
        raise InputError(
            f"{path.parent} is a file",
            expected="a folder of tables",
            hint=f"cotenant data validate {path.parent} -o FOLDER adds a file of your own to one",
        ) from None
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{path} is not a Parquet file", expected="a complete Parquet file", got=str(error)
        ) from None
    if columns is not None and not set(columns) <= set(frame.columns):
        raise InputError(f"{path} lacks a column", expected=", ".join(columns), got=", ".join(frame.columns))
    return frame


def check_tables_folder(directory: Path) -> None:
    """Raise `InputError` if there is no such folder."""
    if not directory.exists():
        raise InputError(
            f"no folder {directory}",
            expected="a folder of tables",
            hint="write one with `cotenant data import`, or from your own files with `cotenant data validate FILE -o`",
        )


def available_tables(directory: Path | str) -> list[str]:
    """Names of the tables that `directory` holds."""
    return [name for name in TABLES if (Path(directory) / f"{name}.parquet").is_file()]


def read_all(directory: Path | str) -> dict[str, pd.DataFrame]:
    """Every table in `directory`; missing tables are empty.

    Raises:
        InputError: there is no `directory`, or it has no tables.
    """
    check_tables_folder(Path(directory))
    present = available_tables(directory)
    if not present:
        raise InputError(
            f"no tables in {directory}",
            expected="at least one of " + ", ".join(f"{name}.parquet" for name in TABLES),
            hint="import data first: cotenant data import --help",
        )
    return {name: read_table(directory, name) if name in present else empty_table(name) for name in TABLES}


def point_targets(colocation: pd.DataFrame) -> pd.DataFrame:
    """Members with a measured, uncensored ratio, on which errors are computed."""
    return colocation[colocation["is_target"] & ~colocation["censored"]]
