"""The service follows the alias `champion` of a real MLflow registry."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from predictor import load_predictor
from predictor.fitted.domain import Domain
from predictor.training.registering import register
from profiling.capture import graph_for
from profiling.errors import InputError, UnavailableError
from serving.model_life import ModelLife
from serving.model_source import RegistrySource
from tests.mlflow_server import mlflow_server
from tests.mlflow_store import empty_store


def checkpoint(folder: Path, seed: int) -> Path:
    """A small untrained predictor, whose predictions are nevertheless in range."""
    import torch

    from models.colocation_network import ColocationNetwork, NetworkConfig, member_width
    from models.workload_encoder import WorkloadEncoder
    from predictor.config import TrainingConfig
    from predictor.examples.featurizer import Featurizer
    from predictor.fitted.checkpoint import save
    from predictor.fitted.fitted import Fitted
    from predictor.fitted.model import CotenantModel, Scaler
    from predictor.predictor import Predictor

    torch.manual_seed(seed)
    config = NetworkConfig()
    network = ColocationNetwork(config, ("a",)).eval()
    encoder = WorkloadEncoder(config.encoder).eval()
    model = CotenantModel(
        config, ("a",), encoder, [network], Scaler.neutral(member_width(config)), Featurizer()
    )
    fitted = Fitted(model, domain=Domain(np.zeros((0, 0)), 0.0))
    return save(Predictor.of(fitted, "new", config, TrainingConfig()), folder)


def test_a_missing_or_incomplete_store(tmp_path: Path) -> None:
    """MLflow creates a missing one and fails on an incomplete one; our error names the file."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    with pytest.raises(UnavailableError, match=r"mlflow\.db"):
        RegistrySource("cotenant", uri).tag()
    assert list(tmp_path.iterdir()) == []
    empty_store(tmp_path / "mlflow.db")
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        database.execute("DROP TABLE alembic_version")
        database.execute("DROP TABLE logged_models")
    with pytest.raises(InputError, match=r"mlflow\.db: .*; if MLflow was killed"):
        RegistrySource("cotenant", uri).tag()


def test_follows_the_champion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import mlflow

    monkeypatch.chdir(tmp_path)
    uri = empty_store(tmp_path / "mlflow.db")
    client = mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)
    experiment = client.create_experiment("e", artifact_location=(tmp_path / "artifacts").as_uri())
    source = RegistrySource("cotenant", uri)
    with pytest.raises(UnavailableError, match="champion"):
        source.tag()
    client.create_registered_model("cotenant")
    for number in (1, 2):
        folder = checkpoint(tmp_path / f"model-{number}", number)
        run = client.create_run(experiment)
        client.log_artifacts(run.info.run_id, str(folder), "predictor")
        client.create_model_version("cotenant", f"{run.info.artifact_uri}/predictor", run.info.run_id)
    client.set_registered_model_alias("cotenant", "champion", "1")
    life = ModelLife(source, 1.0, lambda *_: None, graph_for)
    monkeypatch.delenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", raising=False)
    capsys.readouterr()
    source._client = None
    first = life.refresh()
    assert "Downloading" not in capsys.readouterr().err, "the log has one JSON value per line"
    assert (first.tag, first.version.startswith("model-1-")) == ("cotenant/1", True)
    assert life.refresh() is first
    client.set_registered_model_alias("cotenant", "champion", "2")
    assert life.refresh().version.startswith("model-2-")
    # The registry goes away: the model goes on.
    source._client = mlflow.MlflowClient(tracking_uri="http://127.0.0.1:9", registry_uri="http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert life.refresh().version.startswith("model-2-")
    assert life.last_error
    source._client = client
    assert life.refresh().version.startswith("model-2-")
    assert life.last_error is None, "it answers again"


def test_a_server_that_fails_is_soon_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "")
    with mlflow_server({}, status=503) as (address, asked):
        source = RegistrySource("cotenant", f"http://ann:secret@{address}")
        with pytest.raises(UnavailableError, match="the MLflow store failed") as failed:
            source.tag()
    assert len(asked) == 3, "two repetitions, not seven with growing pauses"
    assert "secret" not in str(failed.value)


def test_a_folder_of_any_name_is_registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow parses the name as an address, in which some characters have a meaning."""
    import mlflow

    before, uri = mlflow.get_tracking_uri(), empty_store(tmp_path / "mlflow.db")
    folder = checkpoint(tmp_path / "modèle #1 50%?", 1)
    try:
        version = register(folder, uri)["version"]
        assert load_predictor(f"models:/cotenant/{version}").version == load_predictor(folder).version
        (stored,) = (tmp_path / "mlartifacts").rglob("weights.safetensors")
        stored.write_bytes(stored.read_bytes()[:-1])
        with pytest.raises(InputError, match=rf"^predictor in models:/cotenant/{version} is damaged"):
            load_predictor(f"models:/cotenant/{version}")
    finally:
        mlflow.set_tracking_uri(before)
