"""Registers a checkpoint whose training or fine-tuning could not, because the MLflow store failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from predictor.fitted.checkpoint import load
from predictor.fitted.mlflow_address import address_of, is_absent, shown
from predictor.fitted.mlflow_registry import failing_store, log_predictor, registered_as, use_store
from predictor.training.tracking import log_scores, tracked
from profiling.files import read_json


def register(folder: Path, tracking_uri: str | None = None, experiment: str = "cotenant") -> dict[str, Any]:
    """Log a checkpoint with its metrics to a run of its own, and register it.

    Args:
        folder: of the checkpoint.
        tracking_uri, experiment: MLflow settings.

    Returns:
        `version` in the registry, `model_version`, `run_id`, `tracking_uri`, and whether it was `already_registered`.

    Raises:
        InputError: there is no intact checkpoint in `folder`, or the store cannot be used.
        UnavailableError: the store fails.
    """
    model_version = load(folder).version
    address = address_of(tracking_uri)
    if not is_absent(address):
        use_store(tracking_uri)
        with failing_store(address):
            earlier = registered_as(model_version)
        if earlier is not None:
            return earlier | {
                "model_version": model_version, "tracking_uri": shown(address), "already_registered": True
            }  # fmt: skip
    metrics = folder / "metrics.json"
    comparison = read_json(metrics)["comparison"] if metrics.is_file() else {}
    with tracked(tracking_uri, experiment, f"register {folder.resolve().name}") as mlflow:
        log_scores(mlflow, comparison)
        return {
            "version": log_predictor(folder),
            "model_version": model_version,
            "run_id": mlflow.active_run().info.run_id,
            "tracking_uri": shown(mlflow.get_tracking_uri()),
            "already_registered": False,
        }
