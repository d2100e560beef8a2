"""Parses columns of a CSV as numbers and times, and records the faults of its rows."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scheduling.traces.remarks import Remark

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
_GUESSES = 20  # number of texts from which the format of timestamps is guessed


class Cells:
    """The cells of `frame`; `remarks` has the first fault of each unusable row.

    Unreadable cells are NaN; so are empty cells, which are faults unless `optional`.
    """

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame
        self.remarks: list[Remark | None] = [None] * len(frame)

    def numbers(self, column: str, unit: str = "", optional: bool = False) -> Floats:
        """[rows] numbers; `unit` completes the error message, e.g. ` of seconds`."""
        import pandas as pd

        values = pd.to_numeric(self.frame[column], errors="coerce").to_numpy(float, na_value=np.nan)
        self._check(column, values, f"is not a number{unit}", optional)
        return np.where(np.isfinite(values), values, np.nan)

    def texts(self, column: str | None) -> list[str]:
        """[rows] texts, such as names; empty where the cell is empty or there is no such column."""
        if column not in self.frame:
            return [""] * len(self.frame)
        cells = self.frame[column]
        empty = cells.isna().to_numpy(bool)
        return [
            "" if nothing else _as_written(cell)
            for cell, nothing in zip(cells.to_numpy(object), empty, strict=True)
        ]

    def seconds(self, column: str, optional: bool = False) -> tuple[Floats, bool]:
        """[rows] seconds as given or since 1970, and whether they are since 1970.

        They are since 1970 if most cells are timestamps.
        """
        import pandas as pd

        raw = self.frame[column]
        numbers = pd.to_numeric(raw, errors="coerce")
        values = numbers.to_numpy(float, na_value=np.nan)
        texts = raw[numbers.isna() & raw.notna()].astype(str)
        stamps, fault = _stamps(texts)
        found = int(stamps.notna().sum())
        by_stamp = found > int(np.isfinite(values).sum())
        if by_stamp:
            values = np.full(len(raw), np.nan)
            # In seconds: in nanoseconds, years such as 1 and 9999 would overflow.
            since = (stamps - pd.Timestamp(0, tz="UTC").as_unit("s")) / pd.Timedelta(seconds=1)
            values[self.frame.index.get_indexer(since.index)] = since.to_numpy(float)
        elif np.isfinite(values).any():
            fault = "is not a number of seconds"
        self._check(column, values, fault, optional)
        return np.where(np.isfinite(values), values, np.nan), by_stamp

    def mark(self, where: NDArray[np.bool_], column: str, fault: str, kept: bool = False) -> None:
        """Record `fault` for the cells of `column` in these rows; rows keep their first fault."""
        cells = self.frame[column].to_numpy(object)
        for row in np.flatnonzero(where):
            first = self.remarks[row]
            if first is None or (first.kept and not kept):
                value = "" if fault == "is empty" else _as_written(cells[row])
                self.remarks[row] = Remark(f"{column} {fault}", value, kept)

    def _check(self, column: str, values: Floats, fault: str, optional: bool) -> None:
        empty = self.frame[column].isna().to_numpy(bool)
        if not optional:
            self.mark(empty, column, "is empty")
        self.mark(~empty & ~np.isfinite(values), column, fault)


def _as_written(cell: object) -> str:
    """Undo pandas' conversion of 0 to 0.0 in a column with empty cells."""
    return str(cell).removesuffix(".0") if isinstance(cell, float) else str(cell)


def _stamps(texts: pd.Series[str]) -> tuple[pd.Series[Any], str]:
    """Timestamps, NaT for texts not in their format, and the fault of these.

    The format is ISO 8601 or, if no text has it, that of the first text. A format in which all texts can be
    read with either day or month first is rejected.
    """
    import pandas as pd
    from pandas.tseries.api import guess_datetime_format

    def read(form: str) -> pd.Series[Any]:
        return pd.to_datetime(texts, format=form, errors="coerce", utc=True)

    best, fault = read("ISO8601"), "is not in ISO 8601 like the others"
    if best.notna().any():
        return best, fault
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning that the day is not first after all
        forms: set[str | None] = set()
        for text in texts.unique()[:_GUESSES]:
            forms |= {guess_datetime_format(text, dayfirst=first) for first in (False, True)}
    # No one writes the day between year and month.
    known = [form for form in forms if form and not re.match("%Y.%d", form)]
    readings = sorted((read(form) for form in known), key=lambda r: -r.notna().sum())
    if not readings or readings[0].isna().all():
        return best, "is neither seconds nor a timestamp"
    best = readings[0]
    for other in readings[1:]:
        if other.notna().sum() == best.notna().sum() and not other.equals(best):
            return best.where(best.isna(), pd.NaT), "is ambiguous: day or month first"
    return best, "is not a timestamp in the same format as the others"
