"""`cotenant report`: an HTML page about a folder of measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    folder: Annotated[Path, typer.Argument(help="Folder with tables, or with the slices of a campaign.")],
    output: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Page to write (default: FOLDER/report.html)."),
    ] = None,
    model: Annotated[
        str,
        typer.Option(help="Predictor to compare with: `default`, a folder, `models:/NAME@ALIAS`, or `none`."),
    ] = "default",
) -> None:
    """Write one HTML page: jobs alone, slowdown matrix, spread, freezing curves, predicted against measured.

    Example:

        cotenant report measured -o report.html
    """
    from profiling.files import check_file

    target = output or folder / "report.html"
    check_file(target)
    from predictor.campaigns.report import write_report

    print(write_report(folder, target, None if model == "none" else model))
