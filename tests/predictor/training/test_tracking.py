"""A training's MLflow run starts first, is updated live, describes itself, and is resumed after a kill."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import mlflow
import pandas as pd
import pytest
from sqlalchemy.exc import OperationalError

from predictor.fitted.mlflow_registry import use_experiment, use_store
from predictor.training import tracking
from predictor.training.tracking import LiveMetrics, log_scores, log_tables, metric_name, tracked
from profiling.errors import InputError, UnavailableError
from tests.mlflow_server import RUNS, mlflow_server
from tests.mlflow_store import empty_store
from tests.predictor.synthetic import tables


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    before = mlflow.get_tracking_uri()
    monkeypatch.chdir(tmp_path)
    yield empty_store(tmp_path / "store" / "mlflow.db")
    mlflow.set_tracking_uri(before)


@pytest.mark.parametrize(
    ("phase", "name"),
    [
        ("encoder", "loss encoder"),
        ("network 2", "loss network 2"),
        ("left out 3: validation network 1", "validation mae left out 3"),
        ("validation network 1", "validation mae network 1"),
        ("left out 3: network 1", None),
        ("compare: e-ggat", None),
    ],
)
def test_names_of_curves(phase: str, name: str | None) -> None:
    assert metric_name(phase) == name


def cut_off(kept: Path, store: str, told: list[str]) -> str:
    """A run that is interrupted after one step; returns its id."""
    run_id = ""
    colocation, solo = tables()
    with suppress(KeyboardInterrupt), tracked(store, "trial", "train model", kept, "one"):
        client, run_id = mlflow.MlflowClient(), mlflow.active_run().info.run_id  # type: ignore[union-attr]
        log_tables(mlflow, colocation, solo, "tables")
        live = LiveMetrics(run_id, lambda phase, *_: told.append(phase))
        live("network 1", 1, 3, 0.5)
        # Seen by others while it runs
        seen = client.get_run(run_id)
        assert (seen.info.status, seen.info.run_name) == ("RUNNING", "train model")
        assert [m.value for m in client.get_metric_history(run_id, "loss network 1")] == [0.5]
        assert {logged.dataset.name for logged in seen.inputs.dataset_inputs} == {"colocation", "solo"}
        assert str(kept.parent / "store") in str(seen.info.artifact_uri)
        raise KeyboardInterrupt
    return run_id


def test_a_run_exists_from_the_start(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "_EVERY_S", 0.0)
    told: list[str] = []
    kept = tmp_path / "model.progress"
    run_id = cut_off(kept, store, told)
    assert told == ["network 1"]
    client = mlflow.MlflowClient()
    assert client.get_run(run_id).info.status == "KILLED"
    with tracked(store, "trial", "another name", kept, "one"):
        again = mlflow.active_run().info  # type: ignore[union-attr]
        assert (again.run_id, again.run_name) == (run_id, "train model")
        # What was done after the last state that was kept is done again, and logged once.
        live = LiveMetrics(run_id)
        for step in (1, 2):
            live("network 1", step, 3, 0.5)
        assert [m.step for m in client.get_metric_history(run_id, "loss network 1")] == [1, 2]
        for _ in range(2):
            log_scores(mlflow, {"e-ggat": {"mae": 0.1}})
        assert len(client.get_metric_history(run_id, "e-ggat mae")) == 1
    with tracked(store, "trial", "other tables", kept, "two"):
        assert mlflow.active_run().info.run_id != run_id  # type: ignore[union-attr]
    assert client.get_run(run_id).info.status == "FINISHED"


def stopped(store: str, ids: list[str]) -> None:
    with tracked(store, "trial", "stopped"):
        ids.append(mlflow.active_run().info.run_id)  # type: ignore[union-attr]
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5.0)


def test_a_stopped_run_is_marked_as_killed(store: str) -> None:
    ids: list[str] = []
    with pytest.raises(SystemExit) as end:
        stopped(store, ids)
    assert end.value.code == 143
    assert mlflow.MlflowClient().get_run(ids[0]).info.status == "KILLED"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_new_store_is_created_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill while MLflow creates its tables leaves no file that later commands would mistake for a store."""
    before, client, file = mlflow.get_tracking_uri(), mlflow.MlflowClient, tmp_path / "mlflow.db"
    seen: list[bool] = []

    def slow(*where: str) -> mlflow.MlflowClient:
        made = client(*where)
        seen.append(file.exists())
        return made

    monkeypatch.setattr(mlflow, "MlflowClient", slow)
    try:
        use_store(f"sqlite:///{file}")
        use_experiment("trial")
        assert seen == [False]
        assert [e.name for e in client().search_experiments()] == ["trial", "Default"]
        assert list(tmp_path.iterdir()) == [file]
    finally:
        mlflow.set_tracking_uri(before)


def test_sigterm_while_a_store_is_created_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = mlflow.get_tracking_uri()

    def stopped_client(*_: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5.0)

    try:
        use_store(f"sqlite:///{tmp_path}/mlflow.db")
        monkeypatch.setattr(mlflow, "MlflowClient", stopped_client)
        with pytest.raises(SystemExit):
            use_experiment("trial")
        assert list(tmp_path.iterdir()) == []
    finally:
        mlflow.set_tracking_uri(before)


def test_an_incomplete_store_is_reported(store: str) -> None:
    """As left by a kill during MLflow's migrations; the error names the file and a remedy."""
    with sqlite3.connect(store.removeprefix("sqlite:///")) as database:
        database.execute("DROP TABLE alembic_version")
        database.execute("DROP TABLE logged_models")
    with pytest.raises(InputError, match=r"store/mlflow\.db: .* has no runs yet, so delete it"):
        use_store(store)


def test_a_store_on_a_full_disk_is_an_error_with_the_reason(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OperationalError("INSERT ...", {}, sqlite3.OperationalError("database or disk is full"))

    def training() -> None:
        with tracked(store, "trial", "full"):
            monkeypatch.setattr(mlflow.MlflowClient, "log_batch", full)
            monkeypatch.setattr(mlflow.MlflowClient, "set_terminated", full)  # as the run ends
            run = mlflow.active_run()
            assert run is not None
            live = LiveMetrics(run.info.run_id)
            live("network 1", 1, 3, 0.5)
            live.flush()

    with pytest.raises(UnavailableError, match=r"database or disk is full.*--tracking-uri") as failed:
        training()
    assert failed.value.exit_code == 2


def test_a_store_that_cannot_be_created_on_a_full_disk_is_an_error_with_the_reason(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OperationalError("CREATE TABLE ...", {}, sqlite3.OperationalError("database or disk is full"))

    use_store("sqlite:///absent.db")
    monkeypatch.setattr(mlflow, "MlflowClient", full)
    with pytest.raises(UnavailableError, match=r"database or disk is full.*--tracking-uri"):
        use_experiment("trial")


@pytest.mark.parametrize("name", ["", "trial"])
def test_an_experiment_that_cannot_be_used(store: str, name: str) -> None:
    use_store(store)
    use_experiment("trial")
    experiment = mlflow.get_experiment_by_name("trial")
    assert experiment is not None
    mlflow.MlflowClient().delete_experiment(experiment.experiment_id)
    with pytest.raises(InputError, match="experiment cannot be used"):
        use_experiment(name)


def test_digests_cover_flags_and_every_row(store: str) -> None:
    colocation, solo = tables()
    long = pd.concat([colocation] * (10_000 // len(colocation) + 1), ignore_index=True)
    changed = long.copy()
    changed.loc[len(long) - 1, "throughput_ratio"] = 0.123
    with tracked(store, "trial", "digests") as run:
        for table in (colocation, colocation.assign(censored=True), long, changed):
            log_tables(run, table, solo, "tables")
        run_id = run.active_run().info.run_id
    inputs = mlflow.MlflowClient().get_run(run_id).inputs.dataset_inputs
    assert sorted(one.dataset.name for one in inputs) == ["colocation"] * 4 + ["solo"]


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    before = mlflow.get_tracking_uri()
    try:
        with pytest.raises(InputError, match=r"expected sqlite:///FILE or http\(s\)://HOST, got"):
            use_store(str(tmp_path / "mlruns"))
    finally:
        mlflow.set_tracking_uri(before)


def test_an_experiment_that_another_process_creates_meanwhile(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_store(store)
    use_experiment("trial")
    monkeypatch.setattr(mlflow, "get_experiment_by_name", lambda name: None)
    use_experiment("trial")


def test_an_experiment_that_a_server_refuses(store: str) -> None:
    with mlflow_server({}) as (address, _):
        use_store(f"http://{address}")
        with pytest.raises(UnavailableError, match=r"401.*set MLFLOW_TRACKING_USERNAME"):
            use_experiment("trial")


def test_a_run_on_a_server_prints_nothing(
    store: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow would print links to the run on stdout, before the JSON result of the command."""
    monkeypatch.setenv("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "false")
    with mlflow_server(RUNS) as (address, asked):
        with tracked(f"http://{address}", "trial", "n"):
            pass
        assert any(path.endswith("runs/update") for path in asked)
    assert capsys.readouterr().out == ""
