"""One training run from tables to a checkpoint: comparison with the baselines, MLflow, model card."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from models.colocation_network import NetworkConfig
from predictor.config import LossCallback, TrainingConfig
from predictor.fitted.checkpoint import save
from predictor.fitted.mlflow_address import shown
from predictor.fitted.mlflow_registry import log_predictor
from predictor.fitted.model_card import PAIRS_LEFT_OUT, model_card
from predictor.predictor import Predictor
from predictor.training.comparison import compare, metrics_on, scatter
from predictor.training.fit import CROSS_FITS
from predictor.training.output import Output, claimed, progress_folder
from predictor.training.progress import Progress, fingerprint
from predictor.training.tracking import LiveMetrics, flat, log_scores, log_tables, tracked
from predictor.training.training_tables import described, training_tables
from profiling.files import write_json, write_whole


def train_run(
    data: Path | None,
    out: Path,
    network: NetworkConfig,
    training: TrainingConfig,
    *,
    bundled: bool = True,
    own_use: bool = False,
    disturbed: bool = False,
    baselines: bool = True,
    graphs: Path | None = None,
    tracking_uri: str | None = None,
    experiment: str = "cotenant",
    report: LossCallback | None = None,
    keep_every_s: float = 20.0,
    system_metrics: bool = False,
    force: bool = False,
) -> dict[str, Any]:
    """Train, compare on held-out pairs, write the checkpoint and log everything.

    Progress is stored in `OUT.progress` beside `out` until the run ends. After a kill, the same call resumes
    there and gives bit-identical results (on the same machine, with the same number of threads).

    Args:
        data, bundled, own_use, disturbed: see `training_tables`.
        out: folder of the checkpoint.
        network, training: configuration.
        baselines: whether to fit the baselines, too.
        graphs: a `datasets.graph_dataset.ColocationDataset` to read computation graphs from; jobs missing
            there are captured.
        tracking_uri, experiment: MLflow settings.
        report: called with the losses.
        system_metrics: also log CPU, memory and GPU usage to MLflow.
        keep_every_s: seconds between stored states of a loop; the end of a stage is always stored.
        force: replace a checkpoint in `out`. A resumed run may replace the same one without it.

    Returns:
        `model_version`, `comparison` (predictor name to metrics), `run_id`, `tracking_uri`, `resumed`.

    Raises:
        InputError: nothing can be written to `out`, or it has a checkpoint; or see `training_tables`.
        ConflictError: another run is writing to `out`, or a checkpoint appeared there during this one.
        UnregisteredError: the checkpoint was written, but the MLflow store failed before it was registered.
    """
    folder = progress_folder(out)
    colocation, solo = training_tables(data, bundled, own_use, disturbed)
    graph_source = None
    if graphs is not None:
        from datasets.graph_dataset import ColocationDataset  # loads torch's compiler, which takes seconds

        graph_source = ColocationDataset.read(graphs).graph_of
    inputs = fingerprint((colocation, solo), network, training, baselines, str(graphs))
    progress = Progress(folder, inputs, keep_every_s)
    name = f"train {out.name}: {described(colocation)}, seed {training.seed}"
    with (
        claimed(out, force, inputs) as output,
        output.registered_later(),
        progress,
        tracked(tracking_uri, experiment, name, folder, inputs, system_metrics) as mlflow,
    ):
        run_id, uri = mlflow.active_run().info.run_id, mlflow.get_tracking_uri()
        mlflow.log_params(flat({"network": asdict(network), "training": asdict(training)}))
        source = str(data.resolve()) if data else "the measurements that come with the project"
        log_tables(mlflow, colocation, solo, source)
        with LiveMetrics(run_id, report) as live:
            compared = compare(
                colocation, solo, network, training, baselines, live, progress.within("compare"), graph_source
            )
            comparison = {name: part["metrics"] for name, part in compared.items()}
            log_scores(mlflow, comparison)
            if "e-ggat" in compared:
                compared["e-ggat"]["held_out"].log(run_id)
            predictor = Predictor(network, training, graph_source).fit(colocation, solo, live, progress)
            if progress.resumed:
                live.complete(progress.losses)
        save_with_card(output, predictor, comparison, "by-pair")
        log_scores(mlflow, metrics_on("learned sets", predictor, colocation, solo))
        mlflow.log_figure(scatter(compared), "predicted_against_measured.png")
        log_predictor(out)
    return {
        "model_version": predictor.version,
        "comparison": comparison,
        "run_id": run_id,
        "tracking_uri": shown(uri),
        "resumed": progress.resumed,
    }


def save_with_card(
    output: Output,
    predictor: Predictor,
    comparison: dict[str, dict[str, Any]],
    split: str,
    compared: str = PAIRS_LEFT_OUT,
) -> None:
    """Write the checkpoint, and beside it `metrics.json` and the model card.

    Args:
        output: the folder.
        predictor: as fitted.
        comparison: predictor name to metrics.
        split, compared: what was compared, for `metrics.json` and for the card.

    Raises:
        ConflictError: see `Output.save`.
        OSError: the folder cannot be written.
    """

    def beside(made: Path) -> None:
        write_json(made / "metrics.json", {"split": split, "comparison": comparison})
        write_whole(made / "MODEL_CARD.md", model_card(predictor, comparison, compared))

    output.save(partial(save, predictor, output.folder, beside))


def planned_steps(training: TrainingConfig) -> int:
    """Steps that a run reports, without the comparison.

    They are those of the model itself, and of a smaller one per held-out group.
    """
    own = training.encoder_steps + training.ensemble * training.epochs
    return own + CROSS_FITS * (training.encoder_steps + training.epochs)
