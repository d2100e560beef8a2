"""`cotenant plan`: pipeline stages, rings and slices."""

from __future__ import annotations

from serving.cli.groups import group
from serving.cli.plan_pipeline import pipeline
from serving.cli.plan_ring import ring
from serving.cli.plan_slices import slices

app = group(
    "Planners: pipeline stages, ring all-reduce, MIG slices and MPS shares.\n\n"
    "Example: `cotenant plan pipeline graph.txt --workers 4 4 --bandwidth 12e9 1.25e9`"
)
app.command()(pipeline)
app.command()(slices)
app.command()(ring)
