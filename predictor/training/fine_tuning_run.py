"""One fine-tuning run, from a checkpoint and a few new rows to a new checkpoint.

It also compares before and after, logs to MLflow and writes a model card.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from predictor.config import LossCallback
from predictor.fitted.mlflow_address import shown
from predictor.fitted.mlflow_registry import log_predictor
from predictor.load import load_predictor
from predictor.training.comparison import before_and_after, metrics_on
from predictor.training.fine_tuning import FineTuning, fine_tune, new_sets
from predictor.training.output import claimed
from predictor.training.run import save_with_card
from predictor.training.tracking import LiveMetrics, flat, log_scores, log_tables, tracked
from predictor.training.training_tables import described, training_tables

_CARD = (
    "Before and after fine-tuning (co-located / solo throughput). The new sets were used in training; for unseen "
    "sets, the intervals below are the only estimate"
)


def fine_tune_run(
    base_name: str,
    data: Path,
    out: Path,
    config: FineTuning = FineTuning(),
    *,
    own_use: bool = False,
    disturbed: bool = False,
    tracking_uri: str | None = None,
    experiment: str = "cotenant",
    report: LossCallback | None = None,
    system_metrics: bool = False,
    force: bool = False,
) -> dict[str, Any]:
    """Fine-tune a checkpoint, compare before and after, write it and log everything.

    Args:
        base_name: name for `load_predictor`.
        data: folder of tables with the new sets.
        out: folder of the new checkpoint.
        config: configuration.
        own_use, disturbed: see `training_tables`.
        tracking_uri, experiment: MLflow settings.
        report: called with the losses.
        system_metrics: also log CPU, memory and GPU usage to MLflow.
        force: replace a checkpoint in `out`.

    Returns:
        `model_version`, `ancestors`, `comparison` (before and after, on the new sets and, if available, on
        those that the base was trained on), `run_id`, `tracking_uri`.

    Raises:
        InputError: nothing can be written to `out`, or it has a checkpoint; or see `fine_tune`.
        ConflictError: another run is writing to `out`, or a checkpoint appeared there during this one.
        UnregisteredError: the checkpoint was written, but the MLflow store failed before it was registered.
    """
    with ExitStack() as held:
        output = held.enter_context(claimed(out, force))
        held.enter_context(output.registered_later())
        base = load_predictor(base_name)
        colocation, solo = training_tables(data, bundled=False, own_use=own_use, disturbed=disturbed)
        new = new_sets(base, colocation)
        name = f"fine-tune {out.name} from {base.version}: {described(new)}, seed {config.seed}"
        mlflow = held.enter_context(tracked(tracking_uri, experiment, name, system_metrics=system_metrics))
        run_id, uri = mlflow.active_run().info.run_id, mlflow.get_tracking_uri()
        mlflow.log_params(flat({"from": base.version, "fine_tuning": asdict(config)}))
        log_tables(mlflow, colocation, solo, str(data.resolve()))
        with LiveMetrics(run_id, report) as live:
            after = fine_tune(base, colocation, solo, config, live)
        comparison = before_and_after(base, after, colocation, solo)
        save_with_card(output, after, comparison, "before and after", _CARD)
        manifest = after.fitted_.manifest
        mlflow.log_metric("new_sets", len(manifest.added_set_ids))
        # Use the metric names of a training, so that MLflow's comparison charts both.
        log_scores(mlflow, comparison | metrics_on("learned sets", after, new, solo, answered=True))
        log_predictor(out)
    return {
        "model_version": after.version,
        "ancestors": list(manifest.ancestors),
        "comparison": comparison,
        "run_id": run_id,
        "tracking_uri": shown(uri),
    }
