"""`cotenant plan`: pipeline stages, rings and slices."""

from __future__ import annotations

import typer

from serving.cli.plan_pipeline import pipeline
from serving.cli.plan_ring import ring
from serving.cli.plan_slices import slices

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Planners: pipeline stages, ring all-reduce, MIG slices and MPS shares.\n\n"
    "Example: `cotenant plan pipeline graph.txt --workers 4 4 --bandwidth 12e9 1.25e9`",
)
app.command()(pipeline)
app.command()(slices)
app.command()(ring)
