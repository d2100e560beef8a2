from __future__ import annotations

import json
from pathlib import Path

import mlflow
import pytest

from predictor.examples import featurizer
from tests.commands import refused, run
from tests.mlflow_store import empty_store
from tests.serving.cli.checkpoint import folder

__all__ = ["folder"]
CONFIG = """
network: {width: 4, heads: 2, encoder: {width: 8, heads: 2, layers: 1, embedding: 4}}
training: {ensemble: 1, epochs: 2, encoder_steps: 2, encoder_batch: 4, mixed_sets: 20, synthetic_batches: 2, teacher_trees: 8,
  shared_sets: 0, inferred_sets: 0}
"""


def test_train_writes_a_predictor(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    featurizer.shared_featurizer.cache_clear()
    (tmp_path / "config.yaml").write_text(CONFIG)
    before = mlflow.get_tracking_uri()
    arguments = ("--data", folder / "tables", "--out", tmp_path / "new", "--config", tmp_path / "config.yaml")
    store = empty_store(tmp_path / "store.db")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "ours")
    try:
        code, out, _ = run(
            capsys, "train", *arguments, "--no-bundled", "--no-baselines", "--tracking-uri", store, "--json"
        )
    finally:
        mlflow.set_tracking_uri(before)
        featurizer.shared_featurizer.cache_clear()
    assert code == 0
    result = json.loads(out)
    assert result["tracking_uri"] == store
    assert "mape_percent" in result["comparison"]["e-ggat"]
    client = mlflow.MlflowClient(store)
    assert client.get_experiment(client.get_run(result["run_id"]).info.experiment_id).name == "ours"
    ask = ("predict", "--model", tmp_path / "new", "--device", "p100", "--job", "alpha", "--job", "delta")
    code, out, _ = run(capsys, *ask, "--json")
    assert json.loads(out)["model_version"] == result["model_version"]
    err = refused(capsys, "train", *arguments)
    assert "new has a config.json: expected a new folder" in " ".join(err.split())


@pytest.mark.parametrize("body", ["network: {wide: 4}", "training: {epochs: 0}", "network: ["])
def test_bad_configuration(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], body: str
) -> None:
    (tmp_path / "config.yaml").write_text(body)
    out = tmp_path / "new"
    err = refused(
        capsys, "train", "--data", folder / "tables", "--out", out, "--config", tmp_path / "config.yaml"
    )
    assert err.startswith("cotenant: ")
    assert not out.exists()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("network: {wdth: 8}", ["unknown key network.wdth", "width"]),
        ("network: {encoder: {wdth: 8}}", ["unknown key network.encoder.wdth", "width"]),
        ("training: {epoch: 8}", ["unknown key training.epoch", "epochs"]),
        ("trainig: {epochs: 8}", ["unknown key trainig", "training"]),
        ("network: 8", ["network is not a mapping"]),
    ],
)
def test_an_unknown_key_suggests_similar_ones(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], body: str, words: list[str]
) -> None:
    (tmp_path / "config.yaml").write_text(body)
    options = ("--data", folder / "tables", "--out", tmp_path / "new", "--config", tmp_path / "config.yaml")
    err = refused(capsys, "train", *options)
    assert all(word in " ".join(err.split()) for word in words)
    assert "__init__" not in err


def test_no_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "colocation" in refused(capsys, "train", "--data", tmp_path, "--out", tmp_path / "new")
