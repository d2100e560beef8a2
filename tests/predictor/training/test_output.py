"""Trainings whose folder is in use, or has a checkpoint already."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException

from datasets.tables import write_table
from predictor.config import LossCallback
from predictor.examples import featurizer
from predictor.training.output import UnregisteredError, claimed
from predictor.training.run import train_run
from profiling.errors import ConflictError, InputError
from profiling.files import only_writer
from tests.mlflow_store import empty_store
from tests.predictor.synthetic import NETWORK, TRAINING, graph_source

REFUSED = r"model has a config\.json: expected a new folder.*give --force to replace it"


class Runs:
    """The same training into the same folder, as often as it is called."""

    def __init__(self, folder: Path, measured: tuple[pd.DataFrame, pd.DataFrame]) -> None:
        self.folder, self.out = folder, folder / "out" / "model"
        self.config = self.out / "config.json"
        for name, table in zip(("colocation", "solo"), measured, strict=True):
            write_table(folder / "tables", name, table[table.device == "v100"])
        self.store = empty_store(folder / "mlflow.db")

    def __call__(self, report: LossCallback | None = None, seed: int = 0, force: bool = False) -> bool:
        """Whether it resumed a run that was killed."""
        training = replace(TRAINING, epochs=2, encoder_steps=2, seed=seed)
        given: dict[str, Any] = {"bundled": False, "baselines": False, "keep_every_s": 0.0, "force": force}
        tables = self.folder / "tables"
        result = train_run(
            tables, self.out, NETWORK, training, tracking_uri=self.store, report=report, **given
        )
        return bool(result["resumed"])

    def come(self, config: str) -> None:
        """Another checkpoint appears in the folder."""
        self.out.mkdir(parents=True, exist_ok=True)
        self.config.write_text(config)


@pytest.fixture
def run(
    tmp_path: Path, measured: tuple[pd.DataFrame, pd.DataFrame], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Runs]:
    before = mlflow.get_tracking_uri()
    monkeypatch.setattr("profiling.capture.graph_for", graph_source)
    featurizer.shared_featurizer.cache_clear()
    yield Runs(tmp_path, measured)
    featurizer.shared_featurizer.cache_clear()
    mlflow.set_tracking_uri(before)


def stop(phase: str, step: int, steps: int, loss: float) -> None:
    if (phase, step) == ("left out 2: network 1", 2):
        raise KeyboardInterrupt


def test_a_checkpoint_is_replaced_only_by_a_run_that_was_forced(run: Runs) -> None:
    run.come("earlier")
    with pytest.raises(InputError, match=REFUSED):
        run()
    assert {p.name for p in run.out.parent.iterdir()} == {"model"}
    with pytest.raises(KeyboardInterrupt):
        run(stop, force=True)
    assert run.config.read_text() == "earlier"
    with pytest.raises(InputError, match=REFUSED):
        run(seed=1)  # not the run that was forced
    assert run()
    assert run.config.read_text() != "earlier"
    assert {p.name for p in run.out.parent.iterdir()} == {"model"}


def test_a_checkpoint_that_appeared_meanwhile_stays(run: Runs) -> None:
    """Between a kill and the resumption, or in place of the one that a run may replace."""

    def appear(phase: str, step: int, steps: int, loss: float) -> None:
        if (phase, step) == ("left out 2: network 1", 2):
            run.come("second")

    with pytest.raises(KeyboardInterrupt):
        run(stop)
    run.come("first")
    with pytest.raises(InputError, match=REFUSED):
        run()
    with pytest.raises(ConflictError, match=r"appeared during the run.*move it away.*--force"):
        run(appear, force=True)
    assert run.config.read_text() == "second"
    with pytest.raises(InputError, match=REFUSED):
        run()
    run.config.rename(run.config.with_name("moved"))
    assert run()


def test_a_run_killed_after_its_checkpoint_resumes(run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("predictor.training.run.log_predictor", kill)
        with pytest.raises(KeyboardInterrupt):
            run()
    assert run.config.exists()
    assert run()


def test_a_run_whose_store_failed_after_its_checkpoint_resumes(
    run: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise MlflowException("Connection refused")

    with monkeypatch.context() as patch:
        patch.setattr("predictor.training.run.log_predictor", gone)
        with pytest.raises(
            UnregisteredError, match=r"written to .*model but not registered.*refused.*repeat the command"
        ):
            run()
    assert run.config.exists()
    assert run()


def test_a_second_training_into_a_folder_is_refused_while_the_first_runs(run: Runs) -> None:
    with (
        only_writer(run.folder / "out" / "model.progress"),
        pytest.raises(ConflictError, match=r"another process writes to .*model\.progress"),
    ):
        run()


def test_sigterm_before_anything_is_kept_leaves_no_folder(tmp_path: Path) -> None:
    def stopped() -> None:
        with claimed(tmp_path / "model", force=False):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5.0)

    with pytest.raises(SystemExit) as end:
        stopped()
    assert end.value.code == 143
    assert list(tmp_path.iterdir()) == []
