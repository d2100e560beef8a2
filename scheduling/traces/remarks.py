"""Faults in rows of a log, reported once per reason with the number of rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Remark:
    """About one row.

    Attributes:
        reason: text shared by rows with the same fault.
        value: the value in the log; may be empty.
        kept: whether the row is still used, with another value.
    """

    reason: str
    value: str = ""
    kept: bool = False


@dataclass(frozen=True, slots=True)
class RowCount:
    """A reason, and the number of rows it applies to.

    Attributes:
        examples: the first distinct values, at most three.
        kept: whether the rows are still used.
    """

    reason: str
    rows: int
    examples: tuple[str, ...] = ()
    kept: bool = False

    def __str__(self) -> str:
        such = f", such as {', '.join(map(repr, self.examples))}" if self.examples else ""
        return f"{self.rows:,} {'row' if self.rows == 1 else 'rows'}: {self.reason}{such}"


def counted_rows(remarks: Iterable[Remark]) -> list[RowCount]:
    """One count per reason, most frequent first."""
    found: dict[tuple[str, bool], list[str]] = {}
    for remark in remarks:
        found.setdefault((remark.reason, remark.kept), []).append(remark.value)
    counts = [
        RowCount(reason, len(values), tuple([v for v in dict.fromkeys(values) if v][:_EXAMPLES]), kept)
        for (reason, kept), values in found.items()
    ]
    return sorted(counts, key=lambda count: -count.rows)


def by_reason(counts: Sequence[RowCount]) -> dict[str, dict[str, int]]:
    """For JSON: rows by reason, as `ignored_rows` and `changed_rows`, omitted if empty."""
    body = {
        "ignored_rows": {count.reason: count.rows for count in counts if not count.kept},
        "changed_rows": {count.reason: count.rows for count in counts if count.kept},
    }
    return {name: rows for name, rows in body.items() if rows}
