"""`cotenant plan ring`: how fast ring-all-reduce jobs run beside each other, and when each should start where."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from serving.cli.output import JsonFlag, console, print_json


def ring(
    case: Annotated[Path, typer.Argument(help="JSON with cluster, jobs and placement.", metavar="CASE.json")],
    clamp: Annotated[
        bool,
        typer.Option("--clamp/--literal", help="k = xi1 p held at 1 or more, or as the paper prints it."),
    ] = True,
    json: JsonFlag = False,
) -> None:
    """Contention, bandwidth and iteration time of placed ring-all-reduce jobs.

    CASE.json: `{"cluster": {"inter_bandwidth": 1250, "intra_bandwidth": 50000, "reduce_speed": 20000, "alpha": 0.2,
    "xi1": 1, "xi2": 0.001, "servers": [4, 4]}, "jobs": {"a": {"gpus": 4, "gradient_size": 100,
    "forward_s_per_sample": 0.0002, "batch_size": 64, "backward_s": 0.02, "iterations": 1000}}, "placement": {"a":
    {"0": 2, "1": 2}}}`

    Example: `cotenant plan ring case.json --json`
    """
    from profiling.errors import InputError
    from profiling.files import read_json
    from scheduling.ring.case import RingCase
    from scheduling.ring.model import ring_timings

    read = RingCase.from_mapping(read_json(case))
    if read.placement is None:
        raise InputError("the case lacks 'placement'", expected="server index → GPUs for every job")
    timings = ring_timings(read.cluster, read.jobs, read.placement, fabric=read.fabric, clamp=clamp)
    if json:
        print_json(
            {
                "jobs": {
                    name: {
                        "contention": int(p) if (p := timing.contention) == int(p) else p,
                        "bandwidth": timing.bandwidth,
                        "iteration_time_s": timing.iteration_time_s,
                    }
                    for name, timing in timings.items()
                }
            }
        )
        return
    from rich.table import Table

    table = Table("job", "servers", "contention", "bandwidth", "iteration time (s)")
    for name, timing in timings.items():
        table.add_row(
            name,
            ", ".join(f"{gpus} on {server}" for server, gpus in sorted(read.placement[name].items())),
            f"{timing.contention:g}",
            f"{timing.bandwidth:.6g}",
            f"{timing.iteration_time_s:.6g}",
        )
    console().print(table)
