from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest

from datasets.tables import write_table
from predictor.config import TrainingConfig
from predictor.examples.cross_fit import ExampleFold, Group, cross_fit
from predictor.examples.examples import examples_of
from predictor.examples.featurizer import Featurizer
from predictor.training import sweep as module
from predictor.training.configuration import load_config
from predictor.training.networks import DivergedError
from predictor.training.sweep import SPACE, configured, inner_groups, left_out_error, sweep, within_space
from profiling.errors import InputError, UnavailableError
from tests.mlflow_store import empty_store
from tests.predictor.synthetic import NETWORK, TRAINING, graph_source

Tables = tuple[pd.DataFrame, pd.DataFrame]
QUICK = replace(TRAINING, encoder_steps=2, mixed_sets=10)
SMALL = {
    "network.width": ([4, 8], None, "choice"),
    "training.epochs": (1, 4, "int"),
    "training.teaching": (0.5, 2.0, "log"),
}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    before = mlflow.get_tracking_uri()
    monkeypatch.setattr(module, "SPACE", SMALL)
    yield empty_store(tmp_path / "mlflow.db")
    mlflow.set_tracking_uri(before)


def run(measured: Tables, folder: Path, store: str, trials: int) -> dict[str, Any]:
    return sweep(
        *measured,
        NETWORK,
        QUICK,
        trials,
        folder / "study.db",
        folds=2,
        out=folder / "best.yaml",
        graph_source=graph_source,
        tracking_uri=store,
    )


def test_weights_that_the_last_step_spoiled_are_a_divergence(
    measured: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Spoiled:
        def predict_log_ratio(self, examples: Any) -> tuple[Any, None]:
            return np.full(len(examples.workloads), np.nan), None

    monkeypatch.setattr(module, "fit", lambda *_: Spoiled())
    examples = examples_of(*measured)
    groups = inner_groups(examples, 2)
    with pytest.raises(DivergedError):
        list(
            cross_fit(
                examples,
                groups,
                lambda fold: left_out_error(fold, measured[1], NETWORK, QUICK, Featurizer(graph_source)),
            )
        )


def test_a_trial_that_diverges_is_pruned(
    measured: Tables, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[TrainingConfig] = []

    def error(fold: ExampleFold, solo: Any, network: Any, training: TrainingConfig, featurizer: Any) -> float:
        tried.append(training)
        if training == tried[0]:
            raise DivergedError("the training diverged", expected="a finite loss", got="nan")
        return 10.0

    monkeypatch.setattr(module, "left_out_error", error)
    assert run(measured, tmp_path, store, 3)["best"]["mape_percent"] == 10.0
    monkeypatch.setattr(
        module, "left_out_error", lambda fold, solo, network, training, _: error(fold, solo, 0, tried[0], 0)
    )
    with pytest.raises(InputError, match=r"diverge.*learning rate"):
        run(measured, tmp_path / "other", store, 2)


def test_a_study_whose_disk_is_full_is_named(
    measured: Tables, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import optuna
    from sqlalchemy.exc import OperationalError

    def full(*_: object, **__: object) -> None:
        # As Optuna words it for any cause.
        error = optuna.exceptions.StorageInternalError("typically happens due to invalid data")
        raise error from OperationalError("INSERT", {}, Exception("database or disk is full"))

    monkeypatch.setattr(module, "left_out_error", lambda *_: 10.0)
    with monkeypatch.context() as patch:
        patch.setattr(optuna.Study, "tell", full)
        with pytest.raises(UnavailableError) as caught:
            run(measured, tmp_path, store, 1)
    assert f"got {tmp_path / 'study.db'}: database or disk is full; if its disk is full" in str(caught.value)
    assert run(measured, tmp_path, store, 1)["trials"] == 1


def test_a_killed_sweep_resumes(
    measured: Tables, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import optuna

    calls: list[tuple[int, list[str]]] = []

    def error(fold: ExampleFold, solo: Any, network: Any, training: Any, featurizer: Any) -> float:
        calls.append((network.width, sorted(fold.group.architectures)))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return left_out_error(fold, solo, network, training, featurizer)

    monkeypatch.setattr(module, "left_out_error", error)
    with pytest.raises(KeyboardInterrupt):
        run(measured, tmp_path, store, 3)
    result = run(measured, tmp_path, store, 3)
    assert result["trials"] == 3
    (name,) = optuna.get_all_study_names(f"sqlite:///{tmp_path}/study.db")
    assert name == result["study"]
    states = [
        t.state.name
        for t in optuna.load_study(study_name=name, storage=f"sqlite:///{tmp_path}/study.db").trials
    ]
    # The first was finished before the kill; the second was cut off and is done again as the third.
    assert states == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    trials = optuna.load_study(study_name=name, storage=f"sqlite:///{tmp_path}/study.db").trials
    assert trials[1].params == trials[2].params
    # The first trial is the configuration that the sweep started from.
    assert (trials[0].params["network.width"], calls[0][0]) == (4, 4)
    # Once there are enough, nothing is done.
    before = len(calls)
    assert run(measured, tmp_path, store, 3)["best"] == result["best"]
    assert len(calls) == before
    runs = mlflow.search_runs(experiment_names=["cotenant-sweep"], output_format="list")
    logged = sorted(r.data.metrics["left-out mape_percent"] for r in runs)
    assert logged == pytest.approx(sorted(t.value for t in trials if t.value is not None))
    assert {r.data.tags["study"] for r in runs} == {name}
    network, training = load_config(tmp_path / "best.yaml")
    assert {"network": asdict(network), "training": asdict(training)} == {
        k: result["best"][k] for k in ("network", "training")
    }
    assert result["best"]["mape_percent"] == pytest.approx(logged[0])


def test_a_file_that_cannot_be_written_ends_a_sweep_before_its_first_trial(
    measured: Tables, tmp_path: Path, store: str
) -> None:
    (tmp_path / "best.yaml").mkdir()
    with pytest.raises(InputError, match=r"best\.yaml is a folder"):
        run(measured, tmp_path, store, 1)
    assert not (tmp_path / "study.db").exists()


def test_concurrent_sweeps_do_not_touch_each_others_trials(
    measured: Tables, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import optuna

    calls: list[None] = []

    def error(*arguments: Any) -> float:
        calls.append(None)
        if len(calls) == 1:  # while the first trial of the first sweep is under way
            run(measured, tmp_path, store, 2)
        return left_out_error(*arguments)

    monkeypatch.setattr(module, "left_out_error", error)
    result = run(measured, tmp_path, store, 2)
    trials = optuna.load_study(study_name=result["study"], storage=f"sqlite:///{tmp_path}/study.db").trials
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 3


def test_a_resumed_sweep_samples_new_values(
    measured: Tables, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import optuna

    monkeypatch.setattr(module, "left_out_error", lambda *_: 10.0)
    for trials in (2, 3, 4):
        result = run(measured, tmp_path, store, trials)
    drawn = optuna.load_study(study_name=result["study"], storage=f"sqlite:///{tmp_path}/study.db").trials
    assert len({trial.params["training.teaching"] for trial in drawn}) == 4


def test_left_out_models_with_bounds_only_are_named(measured: Tables) -> None:
    colocation, solo = measured
    examples = examples_of(colocation.assign(censored=True), solo)
    fold = ExampleFold(inner_groups(examples, 2)[0], examples, examples)
    with pytest.raises(InputError, match=r"no measured throughput.*fewer folds"):
        left_out_error(fold, solo, NETWORK, QUICK, Featurizer(graph_source))


def test_left_out_models_are_absent_from_training(measured: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    examples, solo = examples_of(*measured), measured[1]
    groups = inner_groups(examples, 2)
    assert [sorted(group.architectures) for group in groups] == [["alpha", "delta"], ["beta", "gamma"]]
    fit = module.fit

    def watched(train: Any, alone: Any, *rest: Any) -> Any:
        assert not set(train.architectures) & groups[0].architectures
        assert not {w.model for w in alone.workloads} & groups[0].architectures
        return fit(train, alone, *rest)

    def error(fold: ExampleFold) -> float:
        return left_out_error(fold, solo, NETWORK, QUICK, Featurizer(graph_source))

    monkeypatch.setattr(module, "fit", watched)
    assert next(iter(cross_fit(examples, groups, error))) > 0
    every = Group("all", frozenset(examples.set_ids), frozenset(examples.set_ids))
    with pytest.raises(InputError, match="no sets left"):
        list(cross_fit(examples, [every], error))


def test_space_names_existing_fields() -> None:
    from models.colocation_network import NetworkConfig
    from predictor.config import TrainingConfig

    start = within_space(NetworkConfig(), TrainingConfig())
    assert set(start) == set(SPACE)
    assert configured(start, NetworkConfig(), TrainingConfig()) == (NetworkConfig(), TrainingConfig())
    network, training = configured({"network.encoder.layers": 3, "training.epochs": 7}, NETWORK, TRAINING)
    assert (network.encoder.layers, training.epochs, network.width) == (3, 7, NETWORK.width)


def test_invalid_sweeps_are_refused(
    measured: Tables, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="number of trials"):
        run(measured, tmp_path, store, 0)
    for folds in (1, 5):
        with pytest.raises(InputError, match="2 folds to 4"):
            inner_groups(examples_of(*measured), folds)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UnavailableError, match=r"cotenant\[sweep\]"):
        run(measured, tmp_path, store, 1)


def test_the_command(
    measured: Tables,
    tmp_path: Path,
    store: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import runpy

    monkeypatch.setattr("profiling.capture.graph_for", graph_source)
    for name, table in zip(("colocation", "solo"), measured, strict=True):
        write_table(tmp_path / "tables", name, table)
    (tmp_path / "start.yaml").write_text(json.dumps({"network": asdict(NETWORK), "training": asdict(QUICK)}))
    best = tmp_path / "best.yaml"
    arguments = ["--data", tmp_path / "tables", "--trials", 1, "--folds", 2, "--out", best, "--no-bundled"]
    arguments += ["--study", tmp_path / "s.db", "--config", tmp_path / "start.yaml"]
    arguments += ["--tracking-uri", store, "--json"]
    monkeypatch.setattr(sys, "argv", ["train.py", "sweep", *map(str, arguments)])
    with pytest.raises(SystemExit) as done:
        runpy.run_path(str(Path(__file__).parents[3] / "train.py"), run_name="__main__")
    assert not done.value.code
    result = json.loads(capsys.readouterr().out)
    assert (result["trials"], result["best"]["trial"]) == (1, 0)
    assert load_config(best)[0].width == result["best"]["network"]["width"]


def test_a_store_that_cannot_be_used_ends_a_sweep_before_its_first_trial(
    measured: Tables, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "left_out_error", lambda *_: pytest.fail("a trial ran"))
    with pytest.raises(InputError, match="MLflow store cannot be used"):
        run(measured, tmp_path, "nosuch://x", 1)
    assert not (tmp_path / "study.db").exists()


def test_one_architecture_cannot_be_held_out(measured: Tables) -> None:
    colocation, solo = measured
    alike = colocation.groupby("set_id").architecture.transform(lambda names: (names == "alpha").all())
    with pytest.raises(InputError, match="at least two architectures, got alpha"):
        inner_groups(examples_of(colocation[alike.astype(bool)], solo), 2)
