"""Users' own measurements: a template, and validation that reports row, column, expected and actual value."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets.schema import TABLES, table_fields
from datasets.tables import Fault, find_faults
from profiling.errors import InputError
from profiling.workload import LEAST_MEMORY_BYTES

if TYPE_CHECKING:
    import pandas as pd


_OTHER_SEPARATORS = (";", "\t", "|")
# Largest log difference between a ratio and that of its row's step times: a median of ratios is not the ratio
# of medians.
_RATIO_APART = 0.2
# Larger than noise explains: a slowdown, or a percentage. The largest ratio in the public measurements is
# 1.5.
_LARGEST_RATIO = 2.0
_MEMORY = ("memory_bytes", "set_memory_bytes", "lower_bound_bytes", "upper_bound_bytes")


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
    """Read a CSV (every cell as text) or Parquet file without conversion.

    Raises:
        InputError: the file is missing, or neither.
    """
    import pandas as pd
    import pyarrow as pa

    source = Path(path)
    try:
        if source.suffix == ".parquet":
            frame = pd.read_parquet(source)
        else:
            frame = pd.read_csv(source, dtype=str, keep_default_na=False, skipinitialspace=True)
    except FileNotFoundError:
        raise InputError(f"no file at {source}", hint="check the path") from None
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "filename", None):  # a folder, or not readable
            raise
        raise InputError(
            f"{source} is not Parquet", expected="a complete Parquet file", got=str(error)
        ) from None
    except UnicodeDecodeError as error:
        raise InputError(f"{source} is not text", expected="CSV in UTF-8", got=str(error)) from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise InputError(
            f"{source} is not CSV", expected="a header and rows of equal length", got=str(error)
        ) from None
    if source.suffix != ".parquet":
        _check_layout(source, frame)
    if not len(frame):
        raise InputError(f"{source} has no rows", expected="a header and one row per measurement")
    return frame


def _check_layout(source: Path, frame: pd.DataFrame) -> None:
    """Check a CSV's separator and the length of its rows.

    Raises:
        InputError: another separator, or rows longer than the header.
    """
    import pandas as pd

    header = ",".join(frame.columns)
    other = max(_OTHER_SEPARATORS, key=header.count)
    if header.count(other) > header.count(","):
        raise InputError(f"{source} has another separator", expected="commas between cells", got=repr(other))
    if not isinstance(frame.index, pd.RangeIndex):
        raise InputError(
            f"{source} has rows longer than its header", expected=f"{len(frame.columns)} cells in a row"
        )


def guess_table(frame: pd.DataFrame) -> str:
    """The table whose columns `frame` matches best; `colocation` if hardly any match."""
    columns = set(frame.columns)
    shared = {name: len(columns & {f.name for f in fields}) for name, fields in TABLES.items()}
    if max(shared.values()) < 2:
        return "colocation"
    return max(TABLES, key=lambda name: shared[name] - len(TABLES[name]) * 1e-3)


def check_file(path: Path | str, table: str | None = None) -> tuple[str, pd.DataFrame, list[Fault]]:
    """Check one file of measurements, including the devices and models that it names (`datasets.names`).

    Returns:
        the table against which it was checked, its rows with that table's types, and its faults (none: the
        rows are valid).

    Raises:
        InputError: the file cannot be read at all.
        UnknownNameError: no such table.
    """
    frame = read_user_file(path)
    name = table or guess_table(frame)
    typed, faults = find_faults(name, frame)
    if not faults:
        faults = _memory_in_other_units(typed) + (_contradicted_ratios(typed) if name == "colocation" else [])
    if not faults:
        from datasets.names import with_known_names

        typed, faults = with_known_names(typed)
        # Two spellings of one job may have become the same row.
        faults = faults or find_faults(name, typed)[1]
    return name, typed, sorted(faults, key=lambda fault: (fault.row, fault.column))


def _memory_in_other_units(frame: pd.DataFrame) -> list[Fault]:
    """Memory that cannot be in bytes, e.g. GB or MB."""
    return [
        _fault(frame, row, column, f"bytes, from {LEAST_MEMORY_BYTES:.0e}")
        for column in _MEMORY
        if column in frame
        for row in frame.index[frame[column] < LEAST_MEMORY_BYTES]
    ]


def _contradicted_ratios(frame: pd.DataFrame) -> list[Fault]:
    """Ratios that contradict their row's step times, or are impossible, e.g. slowdowns instead of throughput
    ratios."""
    import numpy as np

    ratio = frame["throughput_ratio"]
    by_steps = frame["solo_step_time_s"] / frame["step_time_s"]
    apart = (np.abs(np.log(ratio / by_steps)) > _RATIO_APART) & frame["is_target"] & ~frame["censored"]
    large = (ratio > _LARGEST_RATIO) & frame["is_target"] & ~apart
    possible = f"co-located / solo throughput, 1 at full speed and at most {_LARGEST_RATIO:g}"
    return [
        _fault(frame, row, ratio.name, f"about {by_steps[row]:.3g}, which is solo_step_time_s / step_time_s")
        for row in frame.index[apart]
    ] + [_fault(frame, row, ratio.name, possible) for row in frame.index[large]]


def _fault(frame: pd.DataFrame, row: Any, column: Any, expected: str) -> Fault:
    return Fault(int(row) + 1, str(column), expected, repr(float(frame.loc[row, column])))


def add_rows(directory: Path | str, table: str, rows: pd.DataFrame, replace: bool = False) -> Path:
    """Add valid rows to a table of `directory`.

    Sets that are already there are replaced; rows that are already there are kept once.

    Args:
        directory: folder of tables.
        table: name of the table.
        rows: the rows.
        replace: replace all rows of the same sources.

    Raises:
        InputError: together with the existing rows they are not valid (a set id given twice); nothing is
            written.
        ConflictError: the rows claim a source that has an importer, or another process holds the folder for
            minutes.
    """
    import pandas as pd

    from datasets.sources import SOURCES
    from datasets.tables import available_tables, read_table, write_table
    from profiling.errors import ConflictError
    from profiling.files import only_writer

    taken = set(rows["source"]) & set(SOURCES)
    if taken:
        raise ConflictError(
            "rows would replace imported ones", expected="a new source name", got=", ".join(sorted(taken))
        )
    with only_writer(directory):
        if table in available_tables(directory):
            old = read_table(directory, table)
            same = old["source"].isin(set(rows["source"]))
            if not replace and "set_id" in rows:
                same &= old["set_id"].isin(set(rows["set_id"]))
            elif not replace:
                there = set(_as_tuples(old[same]))
                rows = rows[[row not in there for row in _as_tuples(rows[old.columns])]]
                same &= False
            parts = [part for part in (old[~same], rows) if len(part)]
            rows = pd.concat(parts, ignore_index=True)
        return write_table(directory, table, rows)


def _as_tuples(frame: pd.DataFrame) -> list[tuple[object, ...]]:
    """Rows as comparable tuples, in which two missing values are equal."""
    values = frame.astype(object)
    return list(values.where(values.notna(), None).itertuples(index=False, name=None))
