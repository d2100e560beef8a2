"""`cotenant predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from serving.cli.output import JsonFlag, console, print_json

JobOption = Annotated[
    list[str], typer.Option("--job", help="Job SPEC `NAME[:key=value,...]`; repeat for each member.")
]
ModelOption = Annotated[str, typer.Option("--model", help="`default`, a folder, or `models:/NAME@ALIAS`.")]


def command(
    job: JobOption,
    device: Annotated[str, typer.Option(help="GPU type, see `cotenant devices list`.")],
    sharing: Annotated[str, typer.Option(help="time-slice, mps or mig.")] = "time-slice",
    frozen_prefix: Annotated[
        int | None, typer.Option(help="Freeze so many first layers of every job that does not say.")
    ] = None,
    model: ModelOption = "default",
    feedback: Annotated[
        Path | None, typer.Option(exists=True, help="Correct by what `cotenant feedback` keeps in this file.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Predict how a set of jobs shares a device: step time, slowdown, memory and utilisation, with 90 % intervals.

    Exit code 1 means that the set does not fit in the device's memory.

    Example: `cotenant predict --device v100 --job resnet18-cifar:batch_size=64 --job lstm-wikitext2:batch_size=20`
    """
    from dataclasses import replace

    from predictor import load_predictor
    from profiling.workload import ColocationSet, Workload

    members = tuple(Workload.parse(spec) for spec in job)
    if frozen_prefix is not None:
        members = tuple(replace(m, frozen_prefix=m.frozen_prefix or frozen_prefix) for m in members)
    predictor = load_predictor(model)
    asked = ColocationSet(device, members, sharing)
    if feedback is None:
        prediction = predictor.predict(asked)
    else:
        from predictor.examples.observations import stored
        from predictor.learning.posterior import Posterior

        posterior = Posterior(predictor)
        posterior.observe(stored(feedback))
        prediction = posterior.predict(asked)
    if as_json:
        print_json(prediction.to_json())
    else:
        show(prediction)
    if not prediction.fits:
        raise typer.Exit(1)


def show(prediction: object) -> None:
    """Print one prediction as a table with its reasons."""
    from typing import Any

    from rich.table import Table

    answer: Any = prediction
    table = Table(title=f"{answer.device}, {answer.sharing} ({answer.model_version})")
    for name in ("job", "alone", "together", "slowdown", "memory", "utilization", "known kind"):
        table.add_column(name, justify="left" if name == "job" else "right")
    for m in answer.members:
        table.add_row(
            m.job,
            f"{_ms(m.solo_step_time_s.value)}",
            f"{_ms(m.step_time_s.value)} [{_ms(m.step_time_s.lower)}, {_ms(m.step_time_s.upper)}]",
            f"{m.slowdown.value:.2f} [{m.slowdown.lower:.2f}, {m.slowdown.upper:.2f}]",
            f"{m.memory_bytes.value / 2**30:.2f} GiB",
            f"{m.utilization_ratio.value:.0%}",
            "yes" if m.in_domain else "no",
        )
    out = console()
    out.print(table)
    for reason in answer.reasons:
        out.print(f" - {reason}")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
