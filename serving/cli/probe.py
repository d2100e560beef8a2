"""`cotenant probe`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from serving.cli.output import JsonFlag, console, print_json
from serving.cli.predict import ModelOption


def command(
    device: Annotated[str, typer.Option(help="GPU type, see `cotenant devices list`.")],
    job: Annotated[str, typer.Option(help="The job to learn about: SPEC `NAME[:key=value,...]`.")],
    running: Annotated[
        list[str] | None,
        typer.Option(help="Candidate neighbour; may be repeated (default: four zoo models)."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Number of probes.")] = 1,
    sharing: Annotated[str, typer.Option(help="time-slice, mps or mig.")] = "time-slice",
    model: ModelOption = "default",
    feedback: Annotated[
        Path | None, typer.Option(exists=True, help="Start from what `cotenant feedback` keeps in this file.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Choose the partner to run beside a job to learn most about how it shares the device, with the expected reduction of the error.

    Example: `cotenant probe --device v100 --job vgg11-cifar:batch_size=64 --running resnet50-imagenet --running lstm-wikitext2`
    """
    from predictor import load_predictor
    from predictor.examples.observations import stored
    from predictor.learning.posterior import Posterior
    from predictor.learning.suggesting import STANDARD_PARTNERS, suggest_probes
    from profiling.workload import Workload

    own = Workload.parse(job)
    partners = [Workload.parse(spec) for spec in running or STANDARD_PARTNERS]
    posterior = Posterior(load_predictor(model))
    if feedback is not None:
        posterior.observe(stored(feedback))
    plan = suggest_probes(posterior, device, own, partners, count, sharing)
    if as_json:
        print_json(plan.to_json())
        return
    from rich.table import Table

    table = Table(title=f"probes of {own} on {device}; expected error now {plan.error_ratio:.1%}")
    table.add_column("beside")
    table.add_column("expected error after", justify="right")
    for probe in plan.probes:
        table.add_row(probe.jobs[1], f"{probe.error_ratio:.1%}")
    console().print(table)
