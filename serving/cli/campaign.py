"""`cotenant campaign`: plan, run, status, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from profiling.campaign.console import export, format_duration, run, status
from serving.cli.given_options import no_effect
from serving.cli.groups import group
from serving.cli.output import JsonFlag, print_json

app = group(
    "Plan and run measurement campaigns.\n\n"
    "Example: `cotenant campaign plan --device cpu --budget 20m -o plan.json`"
)


@app.command("plan")
def plan(
    context: typer.Context,
    output: Annotated[Path, typer.Option("--out", "-o", help="plan.json to write.")] = Path("plan.json"),
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    budget: Annotated[str, typer.Option(help="Time budget of the whole campaign, e.g. 20m.")] = "20m",
    job: Annotated[
        list[str] | None,
        typer.Option(
            "--job", help="Job to include; may be repeated (default: the zoo, at batch sizes that fit)."
        ),
    ] = None,
    sharing: Annotated[
        list[str] | None, typer.Option(help="time-slice, mps or mig; may be repeated.")
    ] = None,
    sm_share: Annotated[
        list[float] | None,
        typer.Option(
            help="SM share (below 1) for solo measurements of some models under MPS; may be repeated."
        ),
    ] = None,
    share_models: Annotated[int, typer.Option(help="Number of models measured at the SM shares.")] = 6,
    name: Annotated[str | None, typer.Option(help="Campaign name: a column of every row.")] = None,
    jobs: Annotated[int, typer.Option(help="Maximum number of jobs taken from the zoo.")] = 24,
    frozen_models: Annotated[int, typer.Option(help="Number of models measured with a frozen prefix.")] = 5,
    repeats: Annotated[int, typer.Option(help="Number of repeats.")] = 5,
    window: Annotated[
        float, typer.Option(help="Minimum length of a window with all members, seconds.")
    ] = 1.0,
    alone_window: Annotated[
        float, typer.Option(help="Minimum length of a window with one member, seconds.")
    ] = 0.5,
    steps: Annotated[int, typer.Option(help="Minimum number of steps of every member in a window.")] = 5,
    model: Annotated[
        str,
        typer.Option(
            help="Predictor whose uncertainty weights the sets: `default`, a folder, `models:/NAME@ALIAS`, or `none`."
        ),
    ] = "default",
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    json: JsonFlag = False,
) -> None:
    """Choose the most informative runs for a time budget and write `plan.json`.

    Example:

        cotenant campaign plan --device cuda --budget 20m -o plan.json
    """
    from profiling.capture import named_workload
    from profiling.files import check_file

    if job:
        no_effect(context, "with --job", "jobs")
    if not sm_share:
        no_effect(context, "without --sm-share", "share_models")
    # Report a misspelt name before the imports, which take seconds.
    workloads = [named_workload(spec) for spec in job or ()]
    check_file(output)
    from predictor.campaigns.plan import PlanConfig, plan_campaign
    from profiling.campaign.runner import parse_duration
    from profiling.measure.settings import MeasureSettings

    made = plan_campaign(
        device,
        workloads,
        PlanConfig(
            budget_s=parse_duration(budget),
            max_workloads=jobs,
            frozen_models=frozen_models,
            # a CUDA context and its libraries take longer to load than a CPU process
            setup_s=6.0 if device == "cuda" else 2.5,
            sharing=tuple(sharing or ("time-slice",)),
            sm_shares=tuple(sm_share or ()),
            share_models=share_models,
            seed=seed,
        ),
        MeasureSettings(repeats=repeats, window_s=window, alone_window_s=alone_window, min_steps=steps),
        name or f"{device}-campaign",
        None if model == "none" else model,
    )
    made.save(output)
    kinds: dict[str, int] = {}
    for planned in made.runs:
        kinds[planned.request.kind] = kinds.get(planned.request.kind, 0) + 1
    if json:
        print_json({"plan": str(output), "runs": kinds, "expected_s": made.expected_s})
    else:
        parts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        print(f"{output}: {parts}; about {format_duration(made.expected_s)}")
        print(f"next: cotenant campaign run {output} -o {made.name}")


app.command("run")(run)
app.command("status")(status)
app.command("export")(export)
