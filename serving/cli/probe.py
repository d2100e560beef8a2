"""`cotenant probe`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from serving.cli.given_options import only
from serving.cli.output import JsonFlag, console, plain_table, print_json
from serving.cli.predict import DeviceOption, ModelOption, SharingOption, posterior_of
from serving.given_names import as_given


def command(
    device: DeviceOption,
    job: Annotated[list[str], typer.Option(help="The job to learn about: SPEC `NAME[:key=value,...]`.")],
    running: Annotated[
        list[str] | None,
        typer.Option(help="Candidate partner; may be repeated (default: four zoo models)."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Number of probes.")] = 1,
    sharing: SharingOption = "time-slice",
    model: ModelOption = "default",
    feedback: Annotated[
        Path | None,
        typer.Option(
            exists=True, help="Start from the observations that `cotenant feedback` stored in this file."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Choose the most informative runs of a job, alone or beside a partner, with the error expected after each run.

    Example: `cotenant probe --device v100 --job vgg11-cifar:batch_size=64 --running resnet50-imagenet --running lstm-wikitext2`
    """
    from profiling.capture import local_workload
    from profiling.devices import get_device
    from profiling.workload import ColocationSet

    get_device(device)
    spec = only("--job", job)
    own = local_workload(spec)
    beside = [local_workload(spec) for spec in running or ()]
    ColocationSet(device, (own, *beside), sharing)
    # A misspelt name is reported before the imports below, which take seconds.
    from predictor import load_predictor
    from predictor.learning.suggesting import STANDARD_PARTNERS, suggest_probes

    partners = beside or [local_workload(spec) for spec in STANDARD_PARTNERS]
    posterior = posterior_of(load_predictor(model), feedback)
    plan = suggest_probes(posterior, device, own, partners, count, sharing)
    renamed = as_given([spec, *(running or STANDARD_PARTNERS)], [own, *partners])
    if as_json:
        print_json(renamed(plan.to_json()))
        return
    out = console()
    out.print(
        f"Most informative runs of {spec} on {device}; expected error now {100 * plan.error_ratio:.1f} %",
        highlight=False,
        soft_wrap=True,
    )
    table = plain_table("beside", "expected error after", right=("expected error after",))
    for probe in plan.probes:
        beside_one = renamed(probe.jobs[1]) if len(probe.jobs) > 1 else "(alone)"
        table.add_row(beside_one, f"{100 * probe.error_ratio:.1f} %")
    if plan.probes:
        out.print(table)
    for reason in (*plan.reasons, *renamed(plan.never_measured)):
        out.print(reason, highlight=False, soft_wrap=True)
