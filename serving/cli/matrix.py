"""`cotenant matrix`: how every pair of jobs shares a device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from serving.cli.output import JsonFlag, bullets, console, plain_table, print_json, progress
from serving.cli.predict import DeviceOption, FeedbackOption, SharingOption, corrected
from serving.cli.simulate import Model

_IN_TABLE = 8


def command(
    device: DeviceOption,
    job: Annotated[
        list[str] | None,
        typer.Option("--job", help="Job SPEC, as for `predict`; may be repeated (default: the whole zoo)."),
    ] = None,
    sharing: SharingOption = "time-slice",
    model: Model = "default",
    feedback: FeedbackOption = None,
    plot: Annotated[Path | None, typer.Option(help="Write the heat map: .svg, .png or .pdf.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Predict the slowdown of every job beside every other, as a table or a heat map.

    Graphs of the whole zoo are captured the first time, which takes about a minute.

    Example: `cotenant matrix --device a100 --job resnet18-cifar --job lstm-wikitext2 --job bert-base-squad --plot pairs.svg`
    """
    from predictor.answering.never_measured import never_measured
    from profiling.capture import local_workload, named_workload
    from profiling.devices import get_device
    from profiling.figures import check_picture
    from profiling.spelling import short_hashes
    from profiling.workload import ColocationSet
    from profiling.zoo import zoo_names
    from scheduling.beliefs.own import load_belief
    from scheduling.pair_matrix import pair_matrix, write_matrix

    get_device(device)
    names = job or zoo_names()
    # Report a misspelt name before capturing anything.
    ColocationSet(device, tuple(map(named_workload, names)), sharing)
    if plot is not None:
        check_picture(plot)
    jobs = [local_workload(name) for name in names]
    with progress() as bar:
        bar.add_task(f"predicting {len(names) * (len(names) + 1) // 2} pairs on {device}", total=None)
        belief = corrected(load_belief(model), feedback)
        matrix = pair_matrix(belief, device, jobs, sharing, names)
        # Each job's options are in the pair with itself.
        never = never_measured(belief, [ColocationSet(device, (job, job), sharing) for job in jobs])
        if plot is not None:
            write_matrix(matrix, plot)
    if as_json:
        print_json({**matrix.to_json(), "never_measured": never})
        return
    out, shown = console(), [short_hashes(name) for name in names]
    if len(names) <= _IN_TABLE:
        columns = [str(number + 1) for number in range(len(names))]
        table = plain_table("", "slowdown beside", *columns, right=("", *columns))
        for number, name in enumerate(shown):
            cells = [
                f"{value:.2f}" if fits else "memory"
                for value, fits in zip(matrix.slowdown[number], matrix.fits[number], strict=True)
            ]
            table.add_row(str(number + 1), name, *cells)
        out.print(table)
    else:
        out.print(_extremes(shown, matrix.slowdown, matrix.fits), highlight=False)
    if never:
        out.print(bullets(never))
    if plot is not None:
        out.print(f"wrote {plot}", highlight=False, soft_wrap=True)


def _extremes(names: list[str], slowdown: object, fits: object) -> str:
    """The best and worst pairs as lines, for when a table would be too wide."""
    import numpy as np

    values, possible = np.asarray(slowdown), np.asarray(fits)
    together = 1.0 / values + 1.0 / values.T
    rows, columns = np.triu_indices(len(names))
    order = [k for k in np.argsort(-together[rows, columns], kind="stable") if possible[rows[k], columns[k]]]

    def line(k: int) -> str:
        a, b = int(rows[k]), int(columns[k])
        return f"  {together[a, b]:.2f}  {names[a]} ({values[a, b]:.2f}x slowdown) and {names[b]} ({values[b, a]:.2f}x)"

    some = 5
    return "\n".join(
        [
            f"{len(order)} of {len(rows)} pairs fit. Work done together, highest first (1.00: no gain):",
            *(line(k) for k in order[:some]),
            "and least:",
            *(line(k) for k in order[-some:]),
            "Use --json for all pairs, --plot FILE.svg for a heat map.",
        ]
    )
