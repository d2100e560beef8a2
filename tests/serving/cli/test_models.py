"""`models export` with an invalid predictor; `list`, `register` and `promote` are tested where a registry is filled."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import mlflow
import pytest

from tests.commands import refused, run
from tests.mlflow_server import mlflow_server


def test_an_empty_registry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, store = mlflow.get_tracking_uri(), ("--tracking-uri", f"sqlite:///{tmp_path}/empty.db")
    try:
        code, out, _ = run(capsys, "models", "list", *store)
        assert (code, "no predictor registered yet" in out) == (0, True)
        code, out, _ = run(capsys, "models", "list", *store, "--json")
        assert json.loads(out) == {"versions": []}
        assert "no predictor registered yet" in refused(capsys, "models", "promote", "1", *store)
    finally:
        mlflow.set_tracking_uri(before)


def test_an_unreadable_store_is_reported_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for uri in (f"sqlite:///{tmp_path}/nowhere/mlflow.db", f"sqlite:///{tmp_path}"):
        assert "cannot be opened" in refused(capsys, "models", "list", "--tracking-uri", uri)


def test_a_store_of_unknown_kind(capsys: pytest.CaptureFixture[str]) -> None:
    before = mlflow.get_tracking_uri()
    try:
        code, _, err = run(capsys, "models", "list", "--tracking-uri", "nosuch://x")
    finally:
        mlflow.set_tracking_uri(before)
    assert code == 2
    assert "MLflow store cannot be used" in err


def test_export_of_an_invalid_predictor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    err = refused(capsys, "models", "export", "--model", tmp_path, "-o", tmp_path / "onnx")
    assert "config.json" in err
    assert not (tmp_path / "onnx").exists()


def test_a_folder_without_a_predictor_is_not_registered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "mlflow.db"
    code, _, err = run(capsys, "models", "register", tmp_path, "--tracking-uri", f"sqlite:///{store}")
    assert code == 2
    assert f"no predictor in {tmp_path}" in " ".join(err.split())
    assert not store.exists()


@pytest.mark.parametrize("silent", [False, True])
def test_an_unreachable_server(
    silent: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("predictor.fitted.mlflow_address._ANSWER_S", 0.2)
    with socket.socket() as free:  # bound, and not listening or never answering
        free.bind(("127.0.0.1", 0))
        if silent:
            free.listen()
        uri = f"http://127.0.0.1:{free.getsockname()[1]}"
        code, _, err = run(capsys, "models", "list", "--tracking-uri", uri)
    assert code == 2
    assert "the MLflow server cannot be reached" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("words", [("list",), ("promote", "1")])
def test_a_server_that_refuses_the_user(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "")
    before = mlflow.get_tracking_uri()
    try:
        with mlflow_server({}) as (address, _):
            code, out, err = run(capsys, "models", *words, "--tracking-uri", f"http://ann:secret@{address}")
    finally:
        mlflow.set_tracking_uri(before)
    assert code == 2
    assert "set MLFLOW_TRACKING_USERNAME" in " ".join(err.split())
    assert "Traceback" not in err
    assert "secret" not in out + err
