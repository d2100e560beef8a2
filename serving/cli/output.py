"""How commands report: tables for people, JSON for programs; results on stdout, progress on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of tables.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]

_UNBOUNDED = 100_000  # characters


def print_json(value: Any) -> None:
    """Print a JSON value on stdout; NaN and infinity are refused, because JSON has neither."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def console() -> Any:
    """A rich console on stdout; where that is no terminal, lines are as long as they need to be.

    `COLUMNS` sets another width. Brackets and colons are printed as they are: names may contain them.
    """
    from rich.console import Console

    screen = Console(markup=False, emoji=False)
    if screen.is_terminal or "COLUMNS" in os.environ:
        return screen
    return Console(width=_UNBOUNDED, markup=False, emoji=False)


_FOLDED = 16  # characters to which a column of long names may be narrowed


def print_whole(table: Any, folded: Sequence[str] = ()) -> None:
    """Print a table of names and numbers; where the terminal is narrower than its words, lines run on, uncut.

    Args:
        folded: headings of columns whose words may be cut, because paths make them long.
    """
    from rich.cells import cell_len

    for column in table.columns:
        cells = (str(cell) for cell in (column.header, *column.cells))
        parts = (part for cell in cells for part in (cell.splitlines() if column.no_wrap else cell.split()))
        longest = max(map(cell_len, parts), default=0)
        column.min_width = min(longest, _FOLDED) if column.header in folded else longest
    screen = console()
    # rich drops columns for which nothing is left, and narrows others below their least width before it heeds that.
    least = sum((column.min_width or 0) + table.padding[1] + table.padding[3] for column in table.columns)
    screen.width = max(screen.width, least)
    screen.print(table, crop=False)


def headline(start: str, rest: str = "") -> Any:
    """A line for a console whose `start` is bold."""
    from rich.text import Text

    return Text.assemble((start, "bold"), rest)


def plain_table(*columns: str, right: Sequence[str] = (), title: str | None = None) -> Any:
    """A rich table without borders; on narrow terminals long cells wrap and are never truncated.

    Args:
        columns: column headings.
        right: headings of the right-aligned (number) columns.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold", vertical="top")
    return table


def bullets(lines: Sequence[str]) -> Any:
    """A list for a console; long lines wrap with a hanging indent."""
    from rich.table import Table

    from profiling.spelling import short_hashes

    grid = Table.grid(padding=(0, 1))
    for line in lines:
        grid.add_row("-", short_hashes(line))
    return grid


def counted(number: int, thing: str) -> str:
    """A number of things: `1 node`, `2 nodes`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def duration(seconds: float, digits: int = 3) -> str:
    """A step time for people, rounded to `digits` significant digits.

    >>> duration(0.01762), duration(2.5), duration(0.01762, 4)
    ('17.6 ms', '2.5 s', '17.62 ms')
    """
    return f"{_rounded(seconds * 1e3, digits)} ms" if seconds < 1 else f"{_rounded(seconds, digits)} s"


def _rounded(value: float, digits: int) -> str:
    """`digits` significant digits, or all before the point if there are more: never an exponent for a large one."""
    return f"{value:.{digits}g}" if value < 10**digits - 0.5 else f"{value:.0f}"


def interval(quantity: Any) -> str:
    """The ends of a step time's interval, in the unit in which `duration` prints its value."""
    scale = 1e3 if quantity.value < 1 else 1.0
    return f"[{_rounded(quantity.lower * scale, 3)}, {_rounded(quantity.upper * scale, 3)}]"


_CELL = 24  # characters of a line of options


def job_cell(spec: str) -> str:
    """A job SPEC for a table cell: the name, with its options on the lines below; only hashes are truncated."""
    from profiling.spelling import short_hashes

    spec = short_hashes(spec)
    name, separator, options = spec.rpartition(":") if "=" in spec else (spec, "", "")
    lines = [name] if separator else []
    for option in options.split(",") if separator else [spec]:
        if len(lines) > 1 and len(lines[-1]) + len(option) < _CELL:
            lines[-1] += f",{option}"
        else:
            lines.append(option)
    return "\n".join(lines)


def progress() -> Any:
    """A rich progress bar on stderr: spinner, text, bar, count, elapsed and remaining time.

    Where stderr is not a terminal, a line every half minute.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    screen = Console(stderr=True)
    if not screen.is_terminal:
        from serving.cli.progress_lines import ProgressLines

        return ProgressLines()
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=screen,
        transient=True,
    )
