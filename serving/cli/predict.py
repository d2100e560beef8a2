"""`cotenant predict`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serving.cli.output import (
    JsonFlag,
    bullets,
    console,
    duration,
    interval,
    job_cell,
    plain_table,
    print_json,
    print_whole,
)
from serving.given_names import as_given

if TYPE_CHECKING:
    from predictor.learning.posterior import Posterior
    from predictor.types import Prediction

JobOption = Annotated[
    list[str],
    typer.Option(
        "--job",
        help="Job SPEC `NAME[:key=value,...]`, where NAME is a zoo name, module:factory, FILE.onnx, "
        "graph.json or the hash of a captured graph; repeat for each job.",
    ),
]
DeviceOption = Annotated[str, typer.Option(help="GPU type, see `cotenant devices list`.")]
SharingOption = Annotated[str, typer.Option(help="time-slice, mps or mig.")]
ModelOption = Annotated[str, typer.Option("--model", help="`default`, a folder, or `models:/NAME@ALIAS`.")]
FeedbackOption = Annotated[
    Path | None,
    typer.Option(
        "--feedback",
        exists=True,
        help="Correct predictions with the observations that `cotenant feedback` stored in this file.",
    ),
]


def command(
    job: JobOption,
    device: DeviceOption,
    sharing: SharingOption = "time-slice",
    frozen_prefix: Annotated[
        int | None,
        typer.Option(help="Freeze this many leading layers of every job whose SPEC has no `frozen_prefix`."),
    ] = None,
    model: ModelOption = "default",
    feedback: FeedbackOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Predict how a set of jobs shares a device: step time, slowdown, memory and utilisation, with 90 % intervals.

    Exit code 1 means that the set does not fit in the device's memory.

    Example: `cotenant predict --device v100 --job resnet18-cifar:batch_size=64 --job lstm-wikitext2:batch_size=20`
    """
    from dataclasses import replace

    from msgspec import structs

    from predictor import load_predictor
    from profiling.capture import local_workload, named_workload, stated_options
    from profiling.devices import get_device
    from profiling.workload import ColocationSet

    get_device(device)
    # Report a misspelt name before capturing anything.
    ColocationSet(device, tuple(map(named_workload, job)), sharing)
    members = tuple(local_workload(spec) for spec in job)
    if frozen_prefix is not None:
        members = tuple(
            member
            if member.frozen_prefix or "frozen_prefix" in stated_options(spec)
            else replace(member, frozen_prefix=frozen_prefix)
            for spec, member in zip(job, members, strict=True)
        )
    predictor = load_predictor(model)
    asked = ColocationSet(device, members, sharing)
    prediction = corrected(predictor, feedback).predict(asked)
    renamed = as_given(job, members)
    prediction = replace(
        prediction,
        members=tuple(structs.replace(m, job=renamed(m.job)) for m in prediction.members),
        reasons=renamed(prediction.reasons),
    )
    if as_json:
        print_json(prediction.to_json())
    else:
        show(prediction)
    if not prediction.fits:
        raise typer.Exit(1)


def corrected(predictor: Any, feedback: Path | None) -> Any:
    """The predictor, corrected by the observations in a file, if one is given, that it was not trained on."""
    return predictor if feedback is None else posterior_of(predictor, feedback)


def posterior_of(predictor: Any, feedback: Path | None) -> Posterior:
    """The same as a posterior, also without observations."""
    from predictor.examples.observations import apart, stored
    from predictor.learning.evidence.trained_on import TrainedOn, new_to
    from predictor.learning.posterior import Posterior

    posterior = Posterior(predictor)
    if feedback is not None:
        told, trained_on = stored(feedback), TrainedOn.of(predictor)
        posterior.observe(new_to(predictor, told))
        posterior.ran(o for o in apart(told)[0] if o in trained_on)
    return posterior


def show(answer: Prediction) -> None:
    """Print one prediction as a table with its reasons."""
    headings = ("job", "alone", "together", "slowdown", "memory", "utili-\nzation")
    table = plain_table(
        *headings, right=headings[1:], title=f"{answer.device}, {answer.sharing} ({answer.model_version})"
    )
    for m in answer.members:
        table.add_row(
            job_cell(m.job),
            f"{duration(m.solo_step_time_s.value)}",
            f"{duration(m.step_time_s.value)}\n{interval(m.step_time_s)}",
            f"{m.slowdown.value:.2f}\n[{m.slowdown.lower:.2f}, {m.slowdown.upper:.2f}]",
            f"{m.memory_bytes.value / 2**30:.2f} GiB",
            f"{100 * m.utilization_ratio.value:.0f} %",
        )
    print_whole(table, folded=("job",))  # a number cut in two would be read as two
    console().print(bullets(answer.reasons))
