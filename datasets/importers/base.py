"""The result type and helpers shared by all importers."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from datasets.schema import TABLES
from datasets.sources import get_source
from datasets.tables import make_table
from profiling.errors import InputError
from profiling.files import check_once, not_csv, read_json
from profiling.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

MEBIBYTE = 2.0**20
T = TypeVar("T")


@dataclass
class Import:
    """Rows of one source to be imported, with a count of everything dropped.

    Attributes:
        source: name of the source.
        rows: table name -> rows.
        read: measurements seen in the files.
        flagged: rows kept but not used for learning or scoring: reason -> count.
        dropped: measurements in no table: reason -> count.
        notes: caveats for users of the rows.
    """

    source: str
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    read: int = 0
    flagged: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    _workloads: set[tuple[str, str]] = field(default_factory=set, repr=False)

    def add(self, table: str, campaign: str, **row: Any) -> None:
        """Add one measured row with its provenance."""
        row.update(
            source=self.source,
            campaign=campaign,
            licence=get_source(self.source).licence,
            origin="measured",
        )
        self.rows.setdefault(table, []).append(row)

    def add_workload(self, campaign: str, workload: str, **row: Any) -> None:
        """Add a row to `workloads`, once per campaign."""
        if (campaign, workload) not in self._workloads:
            self._workloads.add((campaign, workload))
            self.add("workloads", campaign, workload=workload, **row)

    def tables(self) -> dict[str, pd.DataFrame]:
        """The validated tables that have rows."""
        return {name: make_table(name, self.rows[name]) for name in TABLES if self.rows.get(name)}

    def summary(self) -> dict[str, Any]:
        """Counts for people and programs."""
        return {
            "source": self.source,
            "licence": get_source(self.source).licence,
            "read": self.read,
            "kept": {name: len(self.rows[name]) for name in TABLES if self.rows.get(name)},
            "flagged": dict(sorted(self.flagged.items())),
            "dropped": dict(sorted(self.dropped.items())),
            "notes": self.notes,
        }


def find_file(folder: Path, *names: str) -> Path:
    """The first existing one of `names` (paths relative to `folder`, or bare names).

    Raises:
        InputError: none exists.
    """
    path = find_file_if_any(folder, *names)
    if path is None:
        raise lacks_files(folder, " or ".join(names))
    return path


def find_file_if_any(folder: Path, *names: str) -> Path | None:
    """As `find_file`, but None if none exists.

    Raises:
        InputError: `folder` is not a folder.
    """
    if not folder.is_dir():
        raise InputError(f"no folder at {folder}", expected="a clone of upstream or a folder with its files")
    candidates = (path for name in names for path in (folder / name, folder / Path(name).name))
    return next((path for path in candidates if path.is_file()), None)


def find_files(folder: Path, *patterns: str) -> list[Path]:
    """All files below `folder` that match any of `patterns` (as in `Path.rglob`), sorted.

    Raises:
        InputError: there are none.
    """
    if not folder.is_dir():
        raise InputError(f"no folder at {folder}", expected="a clone of upstream or a folder with its files")
    files = sorted({path for pattern in patterns for path in folder.rglob(pattern) if path.is_file()})
    if not files:
        raise lacks_files(folder, " or ".join(patterns))
    return files


def lacks_files(folder: Path, expected: str) -> InputError:
    """The error of a folder without anything that an importer reads."""
    return InputError(
        f"{folder} lacks the files that this importer reads",
        expected=expected,
        hint="`cotenant data sources` shows where to clone it from",
    )


def read_object(path: Path, expected: str) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        InputError: the file is missing or not JSON, or has something else than what is `expected`.
    """
    body = read_json(path)
    if not isinstance(body, dict):
        raise InputError(f"{path} has an unexpected shape", expected=expected, got=type(body).__name__)
    return body


def spec(model: str, **options: Any) -> str:
    """A job SPEC in canonical form; options that are None or their default are omitted."""
    return str(Workload.from_mapping({"model": model, **options}))


def lookup(table: Mapping[str, T], name: str, where: object) -> T:
    """Look up `name` in `table`.

    Raises:
        InputError: no such name; with its location.
    """
    if name not in table:
        raise InputError(f"{where}: unknown name", expected="one of " + ", ".join(table), got=name)
    return table[name]


class CsvRows:
    """Rows of a CSV file with typed cells; errors name file, line, column, expected and actual value."""

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        self.path = path
        self.columns = columns

    def __iter__(self) -> Iterator[CsvRow]:
        try:
            with self.path.open(newline="", encoding="utf-8-sig") as stream:
                reader = csv.DictReader(stream, strict=True)
                check_once(self.path, list(reader.fieldnames or []))
                missing = [name for name in self.columns if name not in (reader.fieldnames or [])]
                if missing:
                    raise InputError(
                        f"{self.path}, line 1: columns are missing",
                        expected=", ".join(self.columns),
                        got=", ".join(reader.fieldnames or []) or "an empty file",
                    )
                for row in reader:
                    line = reader.line_num
                    if None in row or None in row.values():
                        raise InputError(
                            f"{self.path}, line {line}: row length differs from the header",
                            expected=f"{len(reader.fieldnames or [])} cells",
                            hint="the file may be truncated; download it again",
                        )
                    yield CsvRow(self.path, line, row)
        except FileNotFoundError:
            raise InputError(f"no file at {self.path}", expected="CSV in UTF-8") from None
        except UnicodeDecodeError as error:
            raise InputError(f"{self.path} is not text", expected="CSV in UTF-8", got=str(error)) from None
        except csv.Error as error:
            raise not_csv(self.path, reader.line_num, error) from None


@dataclass(frozen=True, slots=True)
class CsvRow:
    """One row; `number` and `integer` read a cell, or raise `InputError` with its location."""

    path: Path
    line: int
    cells: dict[str, str]

    def text(self, column: str) -> str:
        return self._cell(column).strip()

    def _cell(self, column: str) -> str:
        if column not in self.cells:
            raise InputError(
                f"{self.path}, line {self.line}: a column is missing",
                expected=column,
                got=", ".join(self.cells),
            )
        return self.cells[column]

    def number(self, column: str, above: float | None = None, least: float | None = None) -> float:
        try:
            value = float(self._cell(column))
        except ValueError:
            value = math.nan
        if (
            not math.isfinite(value)
            or (above is not None and value <= above)
            or (least is not None and value < least)
        ):
            bounds = (f" above {above:g}" if above is not None else "") + (
                f" from {least:g}" if least is not None else ""
            )
            raise self.fault(column, "a number" + bounds)
        return value

    def integer(self, column: str, least: int = 0) -> int:
        text = self._cell(column)
        try:
            value = int(text)
        except ValueError:
            # Some tables write integers as 1024.0.
            number = self.number(column)
            value = int(number)
            if value != number:
                raise self.fault(column, f"an integer from {least}") from None
        if value < least:
            raise self.fault(column, f"an integer from {least}")
        return value

    def fault(self, column: str, expected: str) -> InputError:
        return InputError(
            f"{self.path}, line {self.line}, column {column}", expected=expected, got=repr(self.cells[column])
        )
