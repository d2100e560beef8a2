"""A sweep over sizes and hyper-parameters with Optuna (extra `sweep`).

Held-out models of the training tables decide. Architectures are held out in groups, where the `by-model`
protocols hold them out one by one, and only from the given tables: these must not contain what is reserved
for scoring. The study is an SQLite file; a sweep that was killed resumes it, and a killed trial is repeated.
Several processes may work on one study at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from models.colocation_network import NetworkConfig
from predictor.config import TrainingConfig
from predictor.evaluation.metrics import score
from predictor.examples.cross_fit import ExampleFold, Group, architecture_groups, cross_fit
from predictor.examples.examples import Examples, examples_of
from predictor.examples.featurizer import Featurizer, GraphSource
from predictor.fitted.mlflow_registry import use_experiment, use_store
from predictor.training.fit import solo_examples
from predictor.training.networks import DivergedError, fit
from predictor.training.progress import fingerprint
from predictor.training.study import check_installed, count_finished, errors_of, joined_study
from predictor.training.tracking import flat, tracked
from profiling.collections.networks import networks_of
from profiling.errors import InputError
from profiling.files import check_file, write_whole

if TYPE_CHECKING:
    import pandas as pd
    from optuna import Study, Trial

# Called after each trial with finished trials, requested trials, its error (NaN if it diverged), and the lowest so far.
Follow = Callable[[int, int, float, float], None]


def sweep(
    colocation: pd.DataFrame,
    solo: pd.DataFrame,
    network: NetworkConfig,
    training: TrainingConfig,
    trials: int,
    study_file: Path,
    *,
    folds: int = 3,
    out: Path | None = None,
    graph_source: GraphSource | None = None,
    tracking_uri: str | None = None,
    experiment: str = "cotenant-sweep",
    follow: Follow | None = None,
) -> dict[str, Any]:
    """Try configurations until the study has `trials` finished ones.

    Args:
        colocation, solo: the training tables, nothing else.
        network, training: start of the sweep: its first trial, and the values of fields not swept.
        trials: total number of finished trials in the study, including those of earlier calls.
        study_file: SQLite file; each fingerprint of tables and start has a study of its own in it.
        folds: number of groups of architectures, held out in turn.
        out: YAML file for the best configuration, to be trained with `--config`.
        graph_source: as for `Predictor`.
        tracking_uri, experiment: MLflow settings; every trial is a run.
        follow: called after each trial.

    Returns:
        `study`, `trials` (finished), `best` with `trial`, `mape_percent`, `network` and `training`.

    Raises:
        UnavailableError: Optuna is not installed, or the study cannot be written, as on a full disk.
        InputError: there are fewer architectures than folds, `trials` is below 1, or a file cannot be written.
    """
    check_installed()
    if trials < 1:
        raise InputError("number of trials is out of range", expected="an integer from 1", got=trials)
    for file in (study_file, *([out] if out is not None else [])):
        check_file(file)
        if file.is_dir():
            raise InputError(f"{file} is a folder", expected="a name for a file")
    use_store(tracking_uri)  # a store that cannot be used should not show after the first trial only
    use_experiment(experiment)
    examples = examples_of(colocation, solo)
    tracking = partial(tracked, tracking_uri, experiment)
    common = _Trials(
        examples, inner_groups(examples, folds), solo, network, training, Featurizer(graph_source), tracking
    )
    name = f"cotenant-{fingerprint((colocation, solo), network, training, folds)[:12]}"
    with joined_study(study_file, name, within_space(network, training)) as study:
        while (done := count_finished(study)) < trials:
            error = common.run_one(study)
            if follow:
                follow(done + 1, trials, error, min(errors_of(study), default=math.nan))
    if not errors_of(study):
        raise InputError(
            "no trial has an error",
            expected="trainings that do not diverge",
            got=f"{done} that diverged",
            hint="lower the learning rate in --config",
        )
    best = study.best_trial
    chosen, how = configured(best.params, network, training)
    result = {"network": asdict(chosen), "training": asdict(how)}
    if out is not None:
        import yaml

        write_whole(out, yaml.safe_dump(result, sort_keys=False))
    return {
        "study": study.study_name,
        "trials": done,
        "best": {"trial": best.number, "mape_percent": best.value, **result},
    }


@dataclass(frozen=True, slots=True)
class _Trials:
    """What the trials of a sweep have in common.

    Attributes:
        examples, groups: sets, and the architectures held out in turn.
        solo: solo runs.
        network, training: values of the fields that are not swept.
        featurizer: graphs and costs.
        tracking: opens a run of MLflow with a name.
    """

    examples: Examples
    groups: list[Group]
    solo: pd.DataFrame
    network: NetworkConfig
    training: TrainingConfig
    featurizer: Featurizer
    tracking: Callable[[str], AbstractContextManager[Any]]

    def run_one(self, study: Study) -> float:
        """Run, log and tell the next trial; returns its mean error so far, NaN without any."""
        from optuna.samplers import TPESampler
        from optuna.trial import TrialState

        # One seed per trial: with a common one, every process and every resumed sweep would sample the same.
        seed = self.training.seed + len(study.get_trials(deepcopy=False))
        study.sampler = TPESampler(seed=seed, n_startup_trials=8)
        trial = study.ask(_distributions())
        network, training = configured(trial.params, self.network, self.training)

        def error(fold: ExampleFold) -> float:
            return left_out_error(fold, self.solo, network, training, self.featurizer)

        errors = _fold_errors(trial, self.examples, self.groups, error)
        mean = float(np.mean(errors)) if errors else math.nan
        whole = len(errors) == len(self.groups)
        with self.tracking(f"{study.study_name} trial {trial.number}") as mlflow:
            mlflow.log_params(flat({"network": asdict(network), "training": asdict(training)}))
            mlflow.log_metrics({f"left-out fold {k + 1} mape_percent": e for k, e in enumerate(errors)})
            if whole:
                mlflow.log_metric("left-out mape_percent", mean)
            mlflow.set_tags({"study": study.study_name, "trial": trial.number})
        if whole:
            study.tell(trial, mean)
        else:
            study.tell(trial, state=TrialState.PRUNED)
        return mean


def _fold_errors(
    trial: Trial, examples: Examples, groups: list[Group], error: Callable[[ExampleFold], float]
) -> list[float]:
    """Errors of a trial, group by group; fewer than groups if it was pruned or diverged."""
    errors: list[float] = []
    with suppress(DivergedError):
        for number, value in enumerate(cross_fit(examples, groups, error)):
            errors.append(value)
            trial.report(float(np.mean(errors)), number)
            if number + 1 < len(groups) and trial.should_prune():
                break
    return errors


# Field -> choices, or the ends of a range; the third entry says how it is sampled.
SPACE: dict[str, tuple[Any, ...]] = {
    "network.encoder.layers": (1, 3, "int"),
    "network.encoder.embedding": ([2, 4, 8, 16], None, "choice"),
    "network.width": ([16, 32, 64], None, "choice"),
    "network.layers": (1, 2, "int"),
    "network.dropout": (0.0, 0.3, "float"),
    "training.epochs": (100, 600, "int"),
    "training.learning_rate": (1e-3, 3e-2, "log"),
    "training.weight_decay": (1e-3, 1.0, "log"),
    "training.teaching": (0.5, 16.0, "log"),
}


def _distributions() -> dict[str, Any]:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    make: dict[str, Any] = {
        "choice": lambda choices, _: CategoricalDistribution(choices),
        "int": IntDistribution,
        "float": FloatDistribution,
        "log": lambda low, high: FloatDistribution(low, high, log=True),
    }
    return {name: make[how](low, high) for name, (low, high, how) in SPACE.items()}


def within_space(network: NetworkConfig, training: TrainingConfig) -> dict[str, Any]:
    """The part of the starting configuration that lies within `SPACE`; the rest is sampled."""
    values = flat({"network": asdict(network), "training": asdict(training)})
    return {
        name: values[name]
        for name, (low, high, how) in SPACE.items()
        if (values[name] in low if how == "choice" else low <= values[name] <= high)
    }


def configured(
    parameters: dict[str, Any], network: NetworkConfig, training: TrainingConfig
) -> tuple[NetworkConfig, TrainingConfig]:
    """`network` and `training` with fields named as in `SPACE` replaced."""

    def under(prefix: str) -> dict[str, Any]:
        cut = {k.removeprefix(prefix): v for k, v in parameters.items() if k.startswith(prefix)}
        return {k: v for k, v in cut.items() if "." not in k}

    encoder = replace(network.encoder, **under("network.encoder."))
    return replace(network, **under("network."), encoder=encoder), replace(training, **under("training."))


def inner_groups(examples: Examples, folds: int) -> list[Group]:
    """Architectures in `folds` groups; each is held out once.

    Raises:
        InputError: fewer than two folds, or more folds than architectures.
    """
    count = len(networks_of(examples.architectures))
    if count < 2:
        raise InputError(
            "cannot hold out models",
            expected="sets of at least two architectures",
            got=", ".join(sorted(set(examples.architectures))),
        )
    if not 2 <= folds <= count:
        raise InputError(
            "cannot hold out models",
            expected=f"from 2 folds to {count}, one per architecture",
            got=folds,
        )
    return architecture_groups(examples, folds)


def left_out_error(
    fold: ExampleFold,
    solo: pd.DataFrame,
    network: NetworkConfig,
    training: TrainingConfig,
    featurizer: Featurizer,
) -> float:
    """MAPE of co-located / solo throughput on the held-out sets."""
    if not fold.train.set_ids:
        raise InputError(
            "no sets left to learn from",
            expected="sets without the held-out models",
            got=", ".join(sorted(set(fold.test.architectures))),
            hint="more folds",
        )
    model = fit(fold.train, solo_examples(fold.seen(solo)), featurizer, network, training)
    log_ratio, _ = model.predict_log_ratio(fold.test)
    scored = fold.test.scored
    if not scored.any():
        raise InputError(
            "no measured throughput to score",
            expected="throughput ratios, not bounds alone, of the left-out models",
            got=", ".join(sorted(set(fold.test.architectures))),
            hint="fewer folds",
        )
    if not np.isfinite(log_ratio[scored]).all():  # the last step spoiled the weights
        raise DivergedError(
            "the training diverged", expected="finite predictions", hint="lower the learning rate"
        )
    return float(score(fold.test.ratio[scored], np.exp(log_ratio[scored]))["mape_percent"])
