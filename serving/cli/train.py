"""`cotenant train`, the same as `python train.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from profiling.errors import InputError
from serving.cli.given_options import no_effect
from serving.cli.output import JsonFlag, console, plain_table, print_json
from serving.cli.training_options import (
    BundledOption,
    DisturbedOption,
    ExperimentOption,
    StoreOption,
    TablesOption,
)
from serving.cli.training_progress import reporting, resumable


def command(
    context: typer.Context,
    data: TablesOption,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the predictor.")] = Path("out/model"),
    config: Annotated[
        Path | None, typer.Option(help="YAML with `network:` and `training:` (see docs/training.md).")
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="CHECKPOINT",
            help="Fine-tune this predictor (a folder or models:/NAME@ALIAS) on the few new sets of DATA.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="The same seed gives the same model (default: that of --config, else 0)."),
    ] = None,
    bundled: BundledOption = True,
    own_use: Annotated[
        bool,
        typer.Option(
            "--own-use",
            help="Train on every source, whatever its licence; the model must not be redistributed.",
        ),
    ] = False,
    disturbed: DisturbedOption = False,
    baselines: Annotated[
        bool, typer.Option(help="Fit the baselines on the same pairs and print the comparison.")
    ] = True,
    graphs: Annotated[
        Path | None,
        typer.Option(help="Read computation graphs from this folder (`cotenant data graphs`)."),
    ] = None,
    tracking_uri: StoreOption = None,
    experiment: ExperimentOption = "cotenant",
    system_metrics: Annotated[
        bool,
        typer.Option("--system-metrics", help="Also log CPU, memory and GPU usage to MLflow."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a predictor in OUT.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Train the predictor on measurements, and compare it with the baselines on held-out pairs.

    The run is logged to MLflow. Run the same command again to resume a killed one.

    With `--from`, fine-tune a predictor on a few new sets, in seconds to a minute, without forgetting the old
    ones.

    Examples: `cotenant train --data tables --out my-model`,
    `cotenant train --from my-model --data new-tables --out my-next-model`
    """
    from datasets.tables import sources_of

    sources_of(data, "colocation")  # report a folder without tables before the imports, which take seconds
    if base is not None:
        if config is not None:
            raise InputError(
                "--config cannot be combined with --from",
                expected="one of them",
                got="both",
                hint="the network is that of the checkpoint",
            )
        no_effect(context, "with --from", "bundled", "baselines", "graphs")
        from predictor.training.fine_tuning import FineTuning
        from predictor.training.fine_tuning_run import fine_tune_run

        title = "before and after, co-located / solo throughput; the new sets were used in training"
        with reporting("fine-tune") as report:
            result = fine_tune_run(
                base,
                data,
                out,
                FineTuning(seed=seed or 0),
                own_use=own_use,
                disturbed=disturbed,
                tracking_uri=tracking_uri,
                experiment=experiment,
                report=report,
                system_metrics=system_metrics,
                force=force,
            )
    else:
        from predictor.config import read_config

        read_config(config)  # and a file that is not YAML
        from predictor.training.configuration import load_config
        from predictor.training.run import planned_steps, train_run

        title = "held-out pairs, co-located / solo throughput"
        network, training = load_config(config, seed)
        with resumable(), reporting("train", planned_steps(training)) as report:
            result = train_run(
                data,
                out,
                network,
                training,
                bundled=bundled,
                own_use=own_use,
                disturbed=disturbed,
                baselines=baselines,
                graphs=graphs,
                tracking_uri=tracking_uri,
                experiment=experiment,
                report=report,
                system_metrics=system_metrics,
                force=force,
            )
    if as_json:
        print_json(result)
    else:
        _show(result, title, out)


def _show(result: dict[str, Any], title: str, out: Path) -> None:
    numbers = ("n", "MAPE %", "MAE", "RMSE", "R2", "Spearman")
    table = plain_table("predictor", *numbers, right=numbers, title=title)
    for name, scores in result["comparison"].items():
        row = [scores.get(k) for k in ("mape_percent", "mae", "rmse", "r2", "spearman")]
        table.add_row(name, str(scores["n"]), *("-" if v is None else f"{v:.3f}" for v in row))
    screen = console()
    screen.print(
        table
        if table.rows
        else "no comparison: it takes measured ratios of two pairs of architectures, one of which is left out"
    )
    screen.print(
        f"predictor {result['model_version']} written to {out}; MLflow run {result['run_id']} in {result['tracking_uri']}"
    )
