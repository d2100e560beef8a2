"""One training run from tables to a checkpoint: comparison with the baselines, MLflow, model card."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.colocation_network import NetworkConfig
from predictor.config import LossCallback, TrainingConfig
from predictor.examples.featurizer import GraphSource
from predictor.fitted.checkpoint import save
from predictor.fitted.model_card import PAIRS_LEFT_OUT, model_card
from predictor.predictor import Predictor
from predictor.training.output import Output, claimed, progress_folder
from predictor.training.progress import NOTHING_KEPT, Progress, fingerprint
from predictor.training.tracking import LiveMetrics, flat, log_scores, log_tables, tracked
from predictor.training.training_tables import described, training_tables
from profiling.files import write_json, write_whole

if TYPE_CHECKING:
    import pandas as pd

    from datasets.bundle import Bundle

# Number of folds of pairs, one of which is held out for the comparison; fewer if there are fewer pairs of
# architectures.
_FOLDS = 5


def train_run(
    data: Path | None,
    out: Path,
    network: NetworkConfig,
    training: TrainingConfig,
    *,
    bundled: bool = True,
    own_use: bool = False,
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
        data, bundled, own_use: see `training_tables`.
        out: folder of the checkpoint.
        network, training: configuration.
        baselines: whether to fit the baselines, too.
        graphs: a `datasets.graph_dataset.ColocationDataset` to read computation graphs from; jobs missing
            there are captured.
        tracking_uri, experiment: MLflow settings.
        report: called with the losses.
        system_metrics: also log CPU, memory and GPU usage to MLflow.
        keep_every_s: seconds between stored states of a loop; the end of a stage is always stored.
        force: replace a checkpoint in `out`. Resuming a run that was killed needs no second permission for the
            same one.

    Returns:
        `model_version`, `comparison` (predictor name to metrics), `run_id`, `tracking_uri`, `resumed`.

    Raises:
        InputError: nothing can be written to `out`, or it has a checkpoint; or see `training_tables`.
        ConflictError: another run is writing to `out`, or a checkpoint appeared there during this one.
        UnregisteredError: the checkpoint was written, but the MLflow store failed before it was registered.
    """
    folder = progress_folder(out)
    colocation, solo = training_tables(data, bundled, own_use)
    graph_source = None if graphs is None else read_graphs(graphs)
    progress = Progress(
        folder,
        fingerprint((colocation, solo), network, training, baselines, str(graphs)),
        keep_every_s,
    )
    name = f"train {out.name}: {described(colocation)}, seed {training.seed}"
    kept = (folder, progress.fingerprint)
    with (
        claimed(out, force, progress.fingerprint) as output,
        output.registered_later(),
        progress,
        tracked(tracking_uri, experiment, name, *kept, system_metrics) as mlflow,
    ):
        run_id, uri = mlflow.active_run().info.run_id, mlflow.get_tracking_uri()
        mlflow.log_params(flat({"network": asdict(network), "training": asdict(training)}))
        log_tables(
            mlflow,
            colocation,
            solo,
            str(data.resolve() if data else "the measurements that come with the project"),
        )
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
        log_scores(mlflow, learned_sets(predictor, colocation, solo))
        mlflow.log_figure(scatter(compared), "predicted_against_measured.png")
        from predictor.fitted.mlflow_registry import log_predictor

        log_predictor(out)
    return {
        "model_version": predictor.version,
        "comparison": comparison,
        "run_id": run_id,
        "tracking_uri": uri,
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


def read_graphs(folder: Path) -> GraphSource:
    """Graphs of a dataset on disk.

    Raises:
        InputError: there is none in `folder`.
    """
    from datasets.graph_dataset import ColocationDataset

    return ColocationDataset.read(folder).graph_of


def planned_steps(training: TrainingConfig) -> int:
    """Steps that a run reports, without the comparison.

    They are those of the model itself, and of a smaller one per held-out group.
    """
    from predictor.training.fit import CROSS_FITS

    own = training.encoder_steps + training.ensemble * training.epochs
    return own + CROSS_FITS * (training.encoder_steps + training.epochs)


def compare(
    colocation: pd.DataFrame,
    solo: pd.DataFrame,
    network: NetworkConfig,
    training: TrainingConfig,
    baselines: bool,
    report: LossCallback | None,
    progress: Progress = NOTHING_KEPT,
    graph_source: GraphSource | None = None,
) -> dict[str, dict[str, Any]]:
    """E-GGAT and the baselines on one fold of held-out pairs.

    Returns:
        name to metrics, measured and predicted values, and all answers. Empty if fewer than two pairs of
        architectures have measured points, because then none can be held out.
    """
    import numpy as np

    from datasets.bundle import Bundle
    from datasets.sets import solo_runs
    from datasets.splits import make_split, pair_count, select_sets
    from datasets.tables import point_targets
    from predictor.evaluation.held_out import HeldOutAnswers
    from predictor.evaluation.metrics import score
    from predictor.evaluation.protocols.networks import NetworkContender
    from predictor.evaluation.protocols.registry import contenders

    pairs = pair_count(colocation)
    if pairs < 2:
        return {}
    measured = set(point_targets(colocation).set_id)
    folds = make_split(colocation, "by-pair", training.seed, min(pairs, _FOLDS))
    both = (f for f in folds if measured & {*f.train_set_ids} and measured & {*f.test_set_ids})
    fold = next(both, None)
    if fold is None:
        return {}
    train = Bundle("throughput_ratio", select_sets(colocation, fold.train_set_ids), solo)
    test = Bundle("throughput_ratio", select_sets(colocation, fold.test_set_ids), solo)
    entrants: dict[str, Any] = {
        "e-ggat": NetworkContender(
            network, replace(training, ensemble=min(training.ensemble, 2)), progress, graph_source
        )
    }
    if baselines:
        entrants |= {
            c.name: c.make() for c in contenders(["constant", "additive", "trees-identity", "trees-solo"])
        }
    result: dict[str, dict[str, Any]] = {}
    points = test.points
    for number, (name, entrant) in enumerate(entrants.items()):
        if report:
            report(f"compare: {name}", number, len(entrants), 0.0)
        answer = partial(_answer, entrant, train, test, training.seed)
        guess = progress.arrays(name, answer)["guess"]
        usable = points & ~np.isnan(guess)
        if not usable.any():
            continue
        result[name] = {
            "metrics": score(test.y[usable], guess[usable]),
            "measured": test.y[usable],
            "predicted": guess[usable],
            "held_out": HeldOutAnswers.of(test.rows, solo_runs(test.rows, solo), guess),
        }
    return result


def _answer(entrant: Any, train: Bundle, test: Bundle, seed: int) -> dict[str, Any]:
    return {"guess": entrant.fit(train, seed).predict(test.without_targets())}


def learned_sets(
    predictor: Predictor, colocation: pd.DataFrame, solo: pd.DataFrame
) -> dict[str, dict[str, Any]]:
    """Error on the training sets themselves, by which trainings and fine-tunings can be compared alike."""
    import numpy as np

    from predictor.evaluation.metrics import score
    from predictor.examples.examples import examples_of

    examples = examples_of(colocation, solo)
    scored = examples.scored
    if not scored.any():
        return {}
    log_ratio, _ = predictor.fitted_.model.predict_log_ratio(examples)
    return {"learned sets": score(examples.ratio[scored], np.exp(log_ratio[scored]))}


def scatter(compared: dict[str, dict[str, Any]]) -> Any:
    """Predicted against measured ratio of every predictor, one panel each."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * max(len(compared), 1), 4), layout="constrained")
    for index, (name, part) in enumerate(compared.items()):
        axes = figure.add_subplot(1, len(compared), index + 1)
        axes.scatter(part["measured"], part["predicted"], s=6, alpha=0.5)
        axes.plot([0, 1.2], [0, 1.2], color="black", linewidth=0.8)
        axes.set(title=name, xlabel="measured ratio", ylabel="predicted ratio", xlim=(0, 1.3), ylim=(0, 1.3))
    return figure
