"""`cotenant feedback`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from profiling.errors import InputError
from serving.cli.output import JsonFlag, console, job_cell, plain_table, print_json
from serving.cli.predict import ModelOption


def command(
    file: Annotated[
        Path,
        typer.Argument(
            help="CSV with device, sharing, jobs (SPECs separated by `;`), job, step_time_s and, for jobs alone, "
            "optionally memory_bytes and utilization_ratio; out_of_memory (true), instead of job and step_time_s, for "
            "sets that did not fit; model_version, if a model other than --model was in use; "
            "or JSON in the format of `/v1/observations`."
        ),
    ],
    model: ModelOption = "default",
    store: Annotated[
        Path | None,
        typer.Option(help="File of observations (default: in the user's data folder)."),
    ] = None,
    rows: Annotated[
        Path | None,
        typer.Option(
            help="Add the observations as rows to this folder of tables, for `cotenant train --data`; rows of "
            "other sources are kept."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Store observed step times, and print how they correct predictions and the error with and without them.

    `--feedback STORE` of `predict`, `matrix`, `place`, `plan slices` and `probe` applies the corrections.

    Example: `cotenant feedback observed.csv --rows feedback-tables`
    """
    from dataclasses import asdict, replace
    from math import exp

    from predictor.examples.observations import (
        check_new,
        default_store,
        keep,
        read_observations,
        stored,
    )
    from predictor.examples.observed_rows import keep_with_rows
    from predictor.examples.out_of_memory import OutOfMemory

    target, new = store or default_store(), read_observations(file)
    # An unreadable file is reported before the imports below, which take seconds.
    from predictor import load_predictor
    from predictor.examples.plausibility import check_memory_plausible, check_plausible
    from predictor.learning.drift import drift_of
    from predictor.learning.evidence.trained_on import new_to
    from predictor.learning.posterior import Posterior
    from predictor.learning.summary import alone_of, corrections_of, ran_out_of_memory
    from profiling.devices import get_device

    predictor = load_predictor(model)
    new = [replace(one, model_version=one.model_version or predictor.version) for one in new]
    # Validate all of them before storing any.
    for number, (one, plain) in enumerate(
        zip(new, predictor.predict_many([o.colocation_set for o in new]), strict=True), 1
    ):
        try:
            if isinstance(one, OutOfMemory):
                check_memory_plausible(plain.total_memory_bytes.upper, get_device(plain.device))
            else:
                check_plausible(one.step_time_s, plain.members[one.member].step_time_s.value)
        except InputError as error:
            raise error.at(f"{file}, row {number}") from None
    told = [*stored(target), *new]
    applied = new_to(predictor, told)
    posterior = Posterior(predictor)
    posterior.observe(applied)
    drift, corrections, alone = drift_of(posterior, applied), corrections_of(posterior), alone_of(posterior)
    check_new(target, new)
    written: dict[str, int] = {}
    if rows is None:
        keep(target, new)
    else:
        written = keep_with_rows(target, new, rows)
    ran_out = ran_out_of_memory(posterior)
    result = {
        "model_version": predictor.version,
        "store": str(target),
        "added": len(new),
        "drift": asdict(drift),
        "corrections": corrections,
        "alone": alone,
        "ran_out_of_memory": ran_out,
        "rows": written,
    }
    if as_json:
        print_json(result)
        return
    _print_effects(predictor.version, corrections, alone)
    out = console()
    for each in ran_out:
        verdict = "fits, because it also ran" if each["fits"] else "does not fit"
        out.print(f"{' and '.join(each['jobs'])} ran out of memory on {each['device']}: {verdict}")
    off = (
        f"; typically off by a factor of {exp(drift.before):.2f} without feedback, {exp(drift.after):.2f} with the "
        "earlier observations"
    )
    out.print(f"{len(new)} added, {len(told)} in {target}{off if drift.count else ''}")
    for name, count in written.items() if any(written.values()) else ():
        out.print(f"{count} row{'s' * (count != 1)} of {name} in {rows}")


def _print_effects(version: str, corrections: list[dict[str, Any]], alone: list[dict[str, Any]]) -> None:
    """Print the corrections of sets, and the quantities of jobs observed alone."""
    numbers = ("seen", "observed", "correction")
    title = f"Effect of the observations ({version})"
    table = plain_table("device", "job", "beside", *numbers, right=numbers, title=title)
    for c in corrections:
        beside = "\n".join(map(job_cell, c["beside"])) or "-"
        observed, factor = f"{c['step_time_s']:.4g} s", f"{c['factor']:.3f}"
        table.add_row(c["device"], job_cell(c["job"]), beside, str(c["count"]), observed, factor)
    for c in alone:
        memory = c["quantity"] == "memory_bytes"
        observed = f"{c['value'] / 2**30:.2f} GiB" if memory else f"{100 * c['value']:.0f} % busy"
        table.add_row(c["device"], job_cell(c["job"]), "-", str(c["count"]), observed, f"{c['factor']:.3f}")
    console().print(table)
