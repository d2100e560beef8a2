"""`cotenant sweep`, the same as `python train.py sweep`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from serving.cli.output import JsonFlag, console, counted, print_json, progress
from serving.cli.training_options import BundledOption, ExperimentOption, StoreOption
from serving.cli.training_progress import resumable


def command(
    data: Annotated[
        Path,
        typer.Option(
            "--data",
            help="Folder of tidy tables to train on; it must not hold anything that you evaluate on.",
        ),
    ],
    trials: Annotated[
        int, typer.Option(help="Total number of trials of the study, including earlier ones.")
    ] = 20,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="YAML file to write the best configuration to.")
    ] = Path("out/best.yaml"),
    study: Annotated[Path, typer.Option(help="SQLite file of the study.")] = Path("out/sweep.db"),
    folds: Annotated[int, typer.Option(help="Number of groups of models, each held out in turn.")] = 3,
    config: Annotated[Path | None, typer.Option(help="YAML file with the initial configuration.")] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, help="Seed of all trainings and of the sweep (default: that of --config, else 0)."
        ),
    ] = None,
    bundled: BundledOption = True,
    own_use: Annotated[
        bool, typer.Option("--own-use", help="Train on every source, whatever its licence.")
    ] = False,
    tracking_uri: StoreOption = None,
    experiment: ExperimentOption = "cotenant-sweep",
    as_json: JsonFlag = False,
) -> None:
    """Search for a better configuration with Optuna, scored on models held out of the training tables.

    Needs the extra `sweep`. DATA must not contain sets that a protocol scores. Run the same command again to
    resume the study, even after a kill.

    Example: `cotenant sweep --data tables --trials 30 --out best.yaml`, then `cotenant train --data tables --config best.yaml`
    """
    from datasets.tables import sources_of

    sources_of(data, "colocation")  # report a folder without tables before the imports, which take seconds
    from predictor.training.configuration import load_config
    from predictor.training.sweep import sweep
    from predictor.training.training_tables import training_tables

    network, training = load_config(config, seed)
    with resumable(), progress() as bar:
        task = bar.add_task("sweep", total=trials)

        def follow(done: int, of: int, error: float, least: float) -> None:
            last = "diverged" if math.isnan(error) else f"{error:.2f} %"
            text = f"sweep, last trial {last} (best {least:.2f} %)"
            bar.update(task, description=text, completed=done, total=of)

        result = sweep(
            *training_tables(data, bundled, own_use),
            network,
            training,
            trials,
            study,
            folds=folds,
            out=out,
            tracking_uri=tracking_uri,
            experiment=experiment,
            follow=follow,
        )
    if as_json:
        print_json(result)
        return
    best = result["best"]
    console().print(
        f"best of {counted(result['trials'], 'trial')}: number {best['trial']}, {best['mape_percent']:.2f} % on "
        f"held-out models; written to {out}"
    )
