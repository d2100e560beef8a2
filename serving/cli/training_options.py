"""Options that commands for training and for trained predictors have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

TablesOption = Annotated[Path, typer.Option("--data", help="Folder of tidy tables (`cotenant data import`).")]
BundledOption = Annotated[bool, typer.Option(help="Also train on the bundled measurements.")]
DisturbedOption = Annotated[
    bool, typer.Option("--disturbed", help="Also use runs that other processes disturbed.")
]
StoreOption = Annotated[
    str | None, typer.Option("--tracking-uri", help="MLflow store (default: sqlite:///mlflow.db).")
]
ExperimentOption = Annotated[str, typer.Option(envvar="MLFLOW_EXPERIMENT_NAME", help="MLflow experiment.")]
