"""How commands report: tables for people, JSON for programs; results on stdout, progress on stderr."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of tables.")]


def print_json(value: Any) -> None:
    """Print a JSON value on stdout; NaN and infinity are refused, because JSON has none."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def console() -> Any:
    """A rich console on stdout."""
    from rich.console import Console

    return Console()


def progress(description: str = "") -> Any:
    """A rich progress bar on stderr: spinner, text, bar, count, time gone and time left."""
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

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
