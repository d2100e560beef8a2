"""What a training run is judged by: errors on held-out pairs, and before and after fine-tuning."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from datasets.bundle import Bundle
from datasets.sets import solo_runs
from datasets.splits import make_split, pair_count, select_sets
from datasets.tables import point_targets
from models.colocation_network import NetworkConfig
from predictor.config import LossCallback, TrainingConfig
from predictor.evaluation.answered import answered_log_ratio
from predictor.evaluation.held_out import HeldOutAnswers
from predictor.evaluation.metrics import score
from predictor.evaluation.protocols.networks import NetworkContender
from predictor.evaluation.protocols.registry import contenders
from predictor.examples.examples import examples_of
from predictor.examples.featurizer import GraphSource
from predictor.fitted.learned_sets import learned_rows
from predictor.predictor import Predictor
from predictor.training.progress import NOTHING_KEPT, Progress

if TYPE_CHECKING:
    import pandas as pd

# Number of folds of pairs, one of which is held out for the comparison; fewer if there are fewer pairs of
# architectures.
_FOLDS = 5


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
        name to metrics, measured and predicted values, and E-GGAT's answers to users as `held_out`. Empty if fewer than
        two pairs of architectures have measured points, because then none can be held out.
    """
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
        answers = progress.arrays(name, answer)
        guess = answers["guess"]
        usable = points & ~np.isnan(guess)
        if not usable.any():
            continue
        result[name] = {
            "metrics": score(test.y[usable], guess[usable]),
            "measured": test.y[usable],
            "predicted": guess[usable],
        }
        if "answered" in answers:
            told = answers["answered"]
            result[name]["held_out"] = HeldOutAnswers.of(test.rows, solo_runs(test.rows, solo), told)
    return result


def _answer(entrant: Any, train: Bundle, test: Bundle, seed: int) -> dict[str, Any]:
    fitted, asked = entrant.fit(train, seed), test.without_targets()
    answered = {"answered": fitted.answers(asked)} if isinstance(fitted, NetworkContender) else {}
    return {"guess": fitted.predict(asked), **answered}


def before_and_after(
    base: Predictor, after: Predictor, colocation: pd.DataFrame, solo: pd.DataFrame
) -> dict[str, dict[str, Any]]:
    """Metrics of both, as they answer users, on the new sets and on the training sets of `base` in the tables."""
    known = learned_rows(base.fitted_, colocation)
    comparison: dict[str, dict[str, Any]] = {}
    for side, rows in (("new sets", colocation[~known]), ("old sets", colocation[known])):
        if len(rows):
            comparison |= metrics_on(f"before {side}", base, rows, solo, answered=True)
            comparison |= metrics_on(f"after {side}", after, rows, solo, answered=True)
    return comparison


def metrics_on(
    name: str,
    predictor: Predictor,
    colocation: pd.DataFrame,
    solo: pd.DataFrame,
    answered: bool = False,
) -> dict[str, dict[str, Any]]:
    """The predictor's metrics on these sets, under `name`; empty if none of their ratios was measured.

    Args:
        answered: score its answers to users, who name no campaign, instead of the fit to the sets' campaigns.
    """
    examples = examples_of(colocation, solo)
    scored = examples.scored
    if not scored.any():
        return {}
    if answered:
        log_ratio = -answered_log_ratio(predictor, examples.without_campaign())[1]
    else:
        log_ratio, _ = predictor.fitted_.model.predict_log_ratio(examples)
    return {name: score(examples.ratio[scored], np.exp(log_ratio[scored]))}


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
