from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException

import predictor
from datasets.graph_dataset import ColocationDataset
from datasets.sets import read_sets
from datasets.sources import withheld
from datasets.tables import write_table
from predictor import load_predictor
from predictor.config import TrainingConfig
from predictor.evaluation import promotion
from predictor.evaluation.held_out import HeldOutAnswers, held_out_of
from predictor.evaluation.promotion import promote
from predictor.evaluation.protocols import networks
from predictor.examples import featurizer
from predictor.fitted.mlflow_registry import shipped, use_store, versions
from predictor.training.run import train_run
from predictor.training.tracking import LiveMetrics
from profiling.errors import ConflictError, InputError, UnavailableError, UnknownNameError
from profiling.graph import ComputationGraph
from profiling.workload import ColocationSet, Workload
from tests import commands
from tests.mlflow_store import empty_store
from tests.predictor.synthetic import NETWORK, TRAINING, graph_source

Tables = tuple[pd.DataFrame, pd.DataFrame]
QUICK = replace(TRAINING, epochs=2, encoder_steps=2)


@pytest.fixture(scope="module")
def data(measured: Tables, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    for name, table in zip(("colocation", "solo"), measured, strict=True):
        write_table(folder, name, table[table.device == "v100"])
    return folder


def quick_run(
    data: Path, out: Path, store: str, training: TrainingConfig = QUICK, **options: Any
) -> dict[str, Any]:
    """A run that logs to `store`; resets MLflow's own store afterwards."""
    before = mlflow.get_tracking_uri()
    try:
        return train_run(
            data, out, NETWORK, training, bundled=False, baselines=False, tracking_uri=store, **options
        )
    finally:
        mlflow.set_tracking_uri(before)


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Any], Path]]:
    """One run with MLflow in a new store; synthetic graphs replace captured ones."""
    folder = tmp_path_factory.mktemp("run")
    before = mlflow.get_tracking_uri()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("profiling.capture.graph_for", graph_source)
        featurizer.shared_featurizer.cache_clear()
        store = empty_store(folder / "mlflow.db")
        result = train_run(
            data, folder / "model", NETWORK, QUICK, bundled=False, baselines=False, tracking_uri=store
        )
        yield result, folder
    featurizer.shared_featurizer.cache_clear()
    mlflow.set_tracking_uri(before)


def test_run_is_written_and_logged(trained: tuple[dict[str, Any], Path]) -> None:
    result, folder = trained
    names = {p.name for p in (folder / "model").iterdir()}
    assert names >= {"weights.safetensors", "config.json", "manifest.json", "metrics.json", "MODEL_CARD.md"}
    assert json.loads((folder / "model" / "metrics.json").read_text())["comparison"] == result["comparison"]
    assert result["model_version"] in (folder / "model" / "MODEL_CARD.md").read_text()
    run = mlflow.get_run(result["run_id"])
    assert run.data.params["training.epochs"] == "2"
    assert run.data.metrics["e-ggat mape_percent"] == result["comparison"]["e-ggat"]["mape_percent"]
    client = mlflow.MlflowClient()
    assert [m.step for m in client.get_metric_history(run.info.run_id, "loss network 1")] == [1, 2]
    assert len(client.get_metric_history(run.info.run_id, "validation mae left out 1")) == 2
    assert run.info.run_name is not None
    assert run.info.run_name.startswith("train model: ")
    assert {logged.dataset.name for logged in run.inputs.dataset_inputs} == {"colocation", "solo"}
    assert "learned sets mape_percent" in run.data.metrics
    # It began with the training and not after it.
    assert run.info.start_time / 1000 < (folder / "model" / "weights.safetensors").stat().st_mtime
    assert "predicted_against_measured.png" in {a.path for a in client.list_artifacts(run.info.run_id)}


def test_a_graph_dataset_avoids_captures_and_gives_identical_weights(
    trained: tuple[dict[str, Any], Path], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, folder = trained
    colocation, solo = read_sets(data)
    dataset = ColocationDataset(folder / "graphs", colocation, graph_source, workloads=solo["workload"])

    def no_capture(workload: Workload) -> ComputationGraph:
        raise AssertionError(f"{workload} was captured")

    monkeypatch.setattr("profiling.capture.graph_for", no_capture)
    featurizer.shared_featurizer.cache_clear()
    store = empty_store(folder / "graphs.db")
    out = folder / "from-graphs" / "model"
    again = quick_run(data, out, store, graphs=dataset.folder)
    assert again["model_version"] == result["model_version"]
    assert again["comparison"] == result["comparison"]
    with pytest.raises(InputError, match="no graph dataset"):
        train_run(data, folder / "nowhere", NETWORK, QUICK, graphs=folder)


def test_an_interrupted_run_resumes(
    trained: tuple[dict[str, Any], Path], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, folder = trained
    out = folder / "again" / "model"
    store = empty_store(folder / "again.db")
    monkeypatch.setattr("profiling.capture.graph_for", graph_source)

    def stop(phase: str, step: int, steps: int, loss: float) -> None:
        if (phase, step) == ("left out 2: network 1", 2):
            raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(LiveMetrics, "flush", lambda _: None)  # as SIGKILL before the points were sent
        with pytest.raises(KeyboardInterrupt):
            quick_run(data, out, store, report=stop, keep_every_s=0.0)
    assert not out.exists()
    # The comparison with the baselines is not made again.
    monkeypatch.delattr(networks.NetworkContender, "fit")
    phases: list[tuple[str, int]] = []

    def kept(phase: str, step: int, steps: int, loss: float) -> None:
        phases.append((phase, step))

    again = quick_run(data, out, store, report=kept, keep_every_s=0.0)
    assert phases[0][0] == "compare: e-ggat"
    assert phases[1] == ("left out 2: network 1", 2)
    assert (again["resumed"], result["resumed"]) == (True, False)
    assert again["model_version"] == result["model_version"]
    assert again["comparison"] == result["comparison"]
    assert {p.name for p in out.parent.iterdir()} == {"model"}
    client = mlflow.MlflowClient(store)
    for name, steps in (("loss encoder", QUICK.encoder_steps), ("loss network 1", QUICK.epochs)):
        curve = client.get_metric_history(again["run_id"], name)
        assert sorted(point.step for point in curve) == [*range(1, steps + 1)], "the curve is complete"


def test_registry(trained: tuple[dict[str, Any], Path]) -> None:
    result, folder = trained
    (row,) = versions()
    assert (row["version"], row["champion"], row["run_id"]) == ("1", False, result["run_id"])
    with pytest.raises(UnavailableError):
        load_predictor("models:/cotenant@champion", graph_source)
    with pytest.raises(UnknownNameError, match="one of 1"):
        promote("7")
    # Without a champion, what ships with the project is what a version has to match, on the pairs left out.
    answer = promote("1", graph_source=graph_source)
    same_rows = answer["same_rows"]
    assert answer["champion"] is None
    assert answer["compared_with"] == shipped()
    assert same_rows["left_out"] == {"challenger": 0, "incumbent": 0}
    own = same_rows["metrics"]["challenger"]
    assert own["n"] == same_rows["rows"] == result["comparison"]["e-ggat"]["n"]
    held_out = held_out_of(result["run_id"])
    assert held_out is not None
    answered = held_out.answers["answered_ratio"].to_numpy()
    assert answered.max() <= 1.0, "as users are answered"
    off = abs(answered / held_out.colocation["throughput_ratio"].to_numpy() - 1)
    assert own["mape_percent"] == pytest.approx(100 * off.mean())
    theirs = same_rows["metrics"]["incumbent"]["mape_percent"]
    assert answer["promoted"] == (own["mape_percent"] <= theirs * 1.001)
    assert promote("1", force=True, graph_source=graph_source)["promoted"]
    assert promote("1")["reason"] == "it is already the champion"
    champion = load_predictor("models:/cotenant@champion", graph_source)
    assert champion.version == result["model_version"]
    asked = ColocationSet("v100", (Workload("alpha", 32), Workload("beta", 32)))
    file = load_predictor(str(folder / "model"), graph_source)
    assert champion.predict(asked) == file.predict(asked)


def test_what_a_server_sent_is_removed(
    trained: tuple[dict[str, Any], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a server, MLflow downloads to a temporary folder unless told where to, and leaves it."""
    download = mlflow.artifacts.download_artifacts

    def from_a_server(artifact_uri: str, dst_path: str | None = None) -> str:
        return str(download(artifact_uri=artifact_uri, dst_path=dst_path or tempfile.mkdtemp()))

    monkeypatch.setattr(mlflow.artifacts, "download_artifacts", from_a_server)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert load_predictor("models:/cotenant/1", graph_source).version == trained[0]["model_version"]
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_a_worse_version_is_not_promoted(
    trained: tuple[dict[str, Any], Path], data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Version 2 is version 1 with predictions for left-out pairs of twice the measured values."""

    result, folder = trained
    promote("1", force=True)
    client = mlflow.MlflowClient()
    source = client.get_model_version("cotenant", "1").source
    assert source
    run = client.create_run(mlflow.get_run(result["run_id"]).info.experiment_id)
    client.log_metric(
        run.info.run_id, "e-ggat mape_percent", 0.1
    )  # on its own rows, which must not be compared
    held_out = held_out_of(result["run_id"])
    assert held_out is not None
    twice = 2 * held_out.colocation.throughput_ratio.to_numpy()
    HeldOutAnswers.of(held_out.colocation, held_out.solo, twice).log(run.info.run_id)
    version = client.create_model_version("cotenant", source, run.info.run_id).version
    store = ["--tracking-uri", f"sqlite:///{folder}/mlflow.db"]

    def command(*arguments: str) -> tuple[int, str, str]:
        return commands.run(capsys, "models", *arguments, *store)

    code, out, _ = command("promote", str(version), "--json")
    assert code == 1
    answer = json.loads(out)
    assert answer["promoted"] is False
    metrics = answer["same_rows"]["metrics"]
    assert metrics["challenger"]["mape_percent"] == pytest.approx(100)
    assert metrics["challenger"]["n"] == metrics["incumbent"]["n"]
    assert answer["same_rows"]["difference_points"]["lower"] > 0
    assert answer["champion"]["version"] == "1"
    code, out, _ = command("promote", str(version))
    assert code == 1
    assert "is worse than version 1 (the champion) and was not promoted" in out
    assert "that neither was trained on" in out
    code, out, _ = command("promote", "99")
    assert code == 2
    # All tables: what both learned from without having been compared on it is left out, and said.
    code, out, _ = command("promote", str(version), "--data", str(data))
    assert code == 1
    assert "sets that version 1 (the champion) was trained on" in " ".join(out.split())
    code, _, err = command("promote", str(version), "--data", str(folder / "nowhere"))
    assert code == 2
    assert f"no folder {folder / 'nowhere'}: expected a folder of tables" in " ".join(err.split())
    listing = json.loads(command("list", "--json")[1])["versions"]
    assert [(r["version"], r["champion"]) for r in listing] == [("2", False), ("1", True)]
    assert "registered predictors" in command("list")[1]
    assert command("promote", str(version), "--force")[0] == 0
    assert next(r for r in versions() if r["champion"])["version"] == "2"


def test_a_promotion_gives_way_to_another(
    trained: tuple[dict[str, Any], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The champion changes, or the version is deleted, while both predict."""
    client = mlflow.MlflowClient()
    source = client.get_model_version("cotenant", "1").source
    assert source
    one, other = (client.create_model_version("cotenant", source, trained[0]["run_id"]) for _ in "ab")
    promote("1", force=True)

    def compare_while(change: Callable[[], object]) -> None:
        def compared(*_: object) -> dict[str, Any]:
            change()
            return {"metrics": {role: {"mape_percent": 1.0} for role in ("challenger", "incumbent")}}

        monkeypatch.setattr(promotion, "_compared", compared)

    compare_while(lambda: client.set_registered_model_alias("cotenant", "champion", other.version))
    with pytest.raises(ConflictError, match=f"got {other.version}, since another command changed it"):
        promote(str(one.version), graph_source=graph_source)
    assert [row["version"] for row in versions() if row["champion"]] == [str(other.version)]
    compare_while(lambda: client.delete_model_version("cotenant", one.version))
    with pytest.raises(UnavailableError, match="cannot be marked"):
        promote(str(one.version), graph_source=graph_source)
    client.delete_model_version("cotenant", other.version)


def test_versions_whose_run_was_deleted_for_good_are_listed(
    trained: tuple[dict[str, Any], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise MlflowException("Run with id=1 not found")

    monkeypatch.setattr(mlflow.MlflowClient, "get_run", gone)
    assert {row["mape_percent"] for row in versions()} == {None}


def test_a_folder_without_a_name_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a folder with a name"):
        quick_run(data, Path("/"), f"sqlite:///{tmp_path}/mlflow.db")


def test_an_empty_registry(tmp_path: Path) -> None:
    before = mlflow.get_tracking_uri()
    use_store(empty_store(tmp_path / "empty.db"))
    try:
        assert versions() == []
        with pytest.raises(UnknownNameError, match="no predictor registered yet"):
            promote("1")
    finally:
        mlflow.set_tracking_uri(before)


def test_a_run_that_fails_at_its_start_leaves_nothing(data: Path, tmp_path: Path) -> None:
    """An invalid folder name would otherwise be reported only after the training."""
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "model"):
        with pytest.raises(InputError, match="cannot be a folder"):
            quick_run(data, out, empty_store(tmp_path / "mlflow.db"))
    with pytest.raises(InputError, match="store cannot be opened"):
        quick_run(data, tmp_path / "model", f"sqlite:///{tmp_path}/nowhere/mlflow.db")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "mlflow.db"}


def test_the_shipped_model_was_trained_on_redistributable_sources_only() -> None:
    manifest = json.loads((Path(predictor.__file__).parent / "checkpoints/default/manifest.json").read_text())
    assert withheld(manifest["sources"]) == []
    assert set(manifest["licences"]) <= {"MIT", "Apache-2.0"}
