from __future__ import annotations

import contextlib
import errno
import io
import json
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import torch

from datasets.tables import write_table
from predictor.evaluation.evaluation import evaluate
from predictor.evaluation.promotion import promote
from predictor.examples.examples import examples_of
from predictor.fitted.checkpoint import load, save
from predictor.load import load_predictor
from predictor.predictor import Predictor
from predictor.training.fine_tuning import FineTuning, fine_tune, with_campaigns
from predictor.training.fine_tuning_run import fine_tune_run
from predictor.training.replay import with_more_campaigns
from profiling.errors import ConflictError, InputError
from profiling.files import only_writer
from profiling.workload import ColocationSet, Workload
from tests.commands import refused
from tests.mlflow_store import empty_store
from tests.predictor.synthetic import NETWORK, TRAINING, graph_source, of_device

Tables = tuple[pd.DataFrame, pd.DataFrame]
QUICK = FineTuning(epochs=3, cross_fits=1)


@pytest.fixture(scope="module")
def old() -> Tables:
    return of_device("v100")


@pytest.fixture(scope="module")
def new() -> Tables:
    """20 rows of a campaign and a device new to the base, in which jobs slow each other much more."""
    colocation, solo = (table.assign(campaign="cluster") for table in of_device("p100"))
    harder = colocation.assign(throughput_ratio=colocation.throughput_ratio**1.6)
    return harder, solo


@pytest.fixture(scope="module")
def base(old: Tables) -> Predictor:
    training = replace(TRAINING, ensemble=2, epochs=50, encoder_steps=20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("predictor.training.fit.CROSS_FITS", 2)  # enough for intervals that can widen
        return Predictor(NETWORK, training, graph_source, "base-1").fit(*old)


@pytest.fixture(scope="module")
def home(
    base: Predictor, old: Tables, new: Tables, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """`m1` (the base), tables with new and old sets, and a separate MLflow store."""
    folder = tmp_path_factory.mktemp("home")
    before, version = mlflow.get_tracking_uri(), base.version
    save(base, folder / "m1")
    base.version = version
    for name, measured, other in zip(("colocation", "solo"), new, old, strict=True):
        write_table(folder / "tables", name, pd.concat([measured, other], ignore_index=True))
    empty_store(folder / "mlflow.db")
    yield folder
    mlflow.set_tracking_uri(before)


@pytest.fixture
def hand_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("profiling.capture.graph_for", graph_source)


def command(home: Path, *more: str) -> list[str]:
    places = ("--from", home / "m1", "--data", home / "tables", "--out", home / "m2")
    return ["train", *map(str, places), *more]


@pytest.fixture(scope="module")
def said(home: Path) -> dict[str, Any]:
    """Output of `cotenant train --from`, which writes `m2`."""
    from serving.cli.main import main

    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setattr("profiling.capture.graph_for", graph_source)
        patch.setattr(
            "predictor.training.fine_tuning.FineTuning",
            partial(FineTuning, epochs=50, learning_rate=0.01, cross_fits=1),
        )
        with pytest.raises(SystemExit) as done:
            main(command(home, "--tracking-uri", f"sqlite:///{home}/mlflow.db", "--json"))
    assert not done.value.code
    result: dict[str, Any] = json.loads(out.getvalue())
    return result


@pytest.fixture(scope="module")
def tuned(home: Path, said: dict[str, Any]) -> Predictor:
    return load(home / "m2", graph_source)


def error_percent(predictor: Predictor, measured: Tables) -> float:
    examples = examples_of(*measured)
    _, slow = predictor.fitted_.model.predict_log_ratio(examples)
    return float(np.abs(np.exp(-slow) / examples.ratio - 1).mean() * 100)


def test_learns_new_sets_and_keeps_old_predictions(
    base: Predictor, tuned: Predictor, old: Tables, new: Tables
) -> None:
    assert len(new[0]) == 20
    before, after = error_percent(base, new), error_percent(tuned, new)
    assert before > 10
    assert after < before / 4
    assert error_percent(base, old) < 4
    assert error_percent(tuned, old) < error_percent(base, old) + 0.5
    # Without the memory it would have forgotten.
    forgetful = fine_tune(base, *new, FineTuning(keeping=0.0, epochs=50, learning_rate=0.01, cross_fits=1))
    assert error_percent(forgetful, old) > error_percent(tuned, old) + 1.5


def test_predictions_without_a_campaign_use_what_was_learned(
    base: Predictor, tuned: Predictor, new: Tables
) -> None:
    """Predictions for users name no campaign."""
    pair = new[0][new[0].set_id == new[0].set_id.iloc[0]]
    asked = ColocationSet("p100", tuple(Workload.parse(w) for w in pair.workload))
    measured = 1 / pair.throughput_ratio.to_numpy()
    before, after = (np.array([m.slowdown.value for m in p.predict(asked).members]) for p in (base, tuned))
    assert (np.abs(after - measured) < np.abs(before - measured)).all()


def test_the_comparison_scores_what_users_are_answered(
    said: dict[str, Any], tuned: Predictor, new: Tables
) -> None:
    examples = examples_of(*new)
    off = []
    for index in range(len(examples.set_ids)):
        rows = np.flatnonzero(examples.set_index == index)
        asked = ColocationSet("p100", tuple(examples.workloads[row] for row in rows))
        for row, member in zip(rows, tuned.predict(asked).members, strict=True):
            off.append(abs(1 / member.slowdown.value / examples.ratio[row] - 1))
    reported = said["comparison"]["after new sets"]["mape_percent"]
    assert 100 * np.mean(off) == pytest.approx(reported, rel=1e-3)


def test_the_base_is_unchanged(base: Predictor, new: Tables, old: Tables) -> None:
    weights = [{k: v.clone() for k, v in n.state_dict().items()} for n in base.fitted_.model.networks]
    fine_tune(base, *new, QUICK)
    for network, kept in zip(base.fitted_.model.networks, weights, strict=True):
        assert all(torch.equal(v, kept[k]) for k, v in network.state_dict().items())
    assert base.fitted_.model.campaigns == ("by-hand",)


def test_same_seed_same_weights(base: Predictor, new: Tables) -> None:
    first, again = (fine_tune(base, *new, QUICK).fitted_.model.networks for _ in range(2))
    for network, other in zip(first, again, strict=True):
        assert all(torch.equal(v, other.state_dict()[k]) for k, v in network.state_dict().items())


def test_manifest_records_ancestors_and_new_sets(
    base: Predictor, tuned: Predictor, home: Path, new: Tables, tmp_path: Path
) -> None:
    manifest = tuned.fitted_.manifest
    assert manifest.ancestors == (load(home / "m1", graph_source).version,)
    assert set(manifest.added_set_ids) == set(new[0].set_id)
    assert set(manifest.set_ids) == set(new[0].set_id) | set(base.fitted_.manifest.set_ids)
    save(tuned, tmp_path / "m2")
    again = load(tmp_path / "m2", graph_source)
    assert again.fitted_.manifest == manifest
    # From there it can learn on.
    third = fine_tune(again, new[0].assign(set_id="third/" + new[0].set_id, campaign="other"), new[1], QUICK)
    assert third.fitted_.manifest.ancestors == (*manifest.ancestors, again.version)
    assert third.fitted_.model.campaigns == ("by-hand", "cluster", "other")
    # Sets that were learned from are not scored.
    with pytest.raises(InputError, match="no sets left"):
        evaluate(again, *new)


def test_no_interval_becomes_narrower(base: Predictor, tuned: Predictor, new: Tables) -> None:
    before, after = base.fitted_.intervals, tuned.fitted_.intervals
    assert all(after.quantile[k] >= before.quantile[k] for k in before.quantile)
    assert after.solo_log_error >= before.solo_log_error
    assert after.utilization_error >= before.utilization_error
    heads = tuned.fitted_.heads
    assert all(
        a >= b for a, b in zip(heads.memory_log_error, base.fitted_.heads.memory_log_error, strict=True)
    )
    # What is measured of an architecture that was left out widens them, however well it was learned.
    rng = np.random.default_rng(0)
    noisy = new[0].assign(throughput_ratio=new[0].throughput_ratio * np.exp(rng.normal(0, 0.8, len(new[0]))))
    wide = fine_tune(base, noisy, new[1], QUICK).fitted_.intervals
    assert all(wide.quantile[k] > 1.5 * before.quantile[k] for k in before.quantile)


def test_new_workloads_are_in_the_domain(base: Predictor, tuned: Predictor, new: Tables) -> None:
    assert len(tuned.fitted_.domain.points) == len(base.fitted_.domain.points) + 4
    assert tuned.fitted_.domain.radius == base.fitted_.domain.radius
    examples = examples_of(*new)
    encoded = tuned.fitted_.model.encode(zip(examples.workloads, examples.devices, strict=True))
    assert all(tuned.fitted_.domain.contains(e.embedding) for e in encoded.values())


def test_a_new_campaign_starts_as_an_unknown_one(base: Predictor, old: Tables) -> None:
    network = base.fitted_.model.networks[0]
    grown = with_campaigns(network, (*network.campaigns, "a", "b"))
    sets = base.fitted_.replay
    assert sets is not None
    wide = with_more_campaigns(sets, 2)
    with torch.no_grad():
        assert torch.allclose(grown(wide).log_slowdown, network(sets).log_slowdown, atol=1e-6)
        unknown = sets.setting.clone()
        unknown[:, -2:] = torch.tensor([0.0, 1.0])
        named = wide.setting.clone()
        named[:, -4:] = torch.tensor([0.0, 1.0, 0.0, 0.0])
        was, now = network(replace(sets, setting=unknown)), grown(replace(wide, setting=named))
    assert torch.allclose(now.log_slowdown, was.log_slowdown, atol=1e-6)
    assert torch.allclose(now.log_baseline, was.log_baseline, atol=1e-6)


@pytest.mark.parametrize("name", ["epochs", "learning_rate", "cross_fits"])
def test_an_invalid_configuration_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=rf"fine_tuning\.{name}"):
        FineTuning(**{name: 0})


def test_unusable_tables_are_refused(base: Predictor, old: Tables, new: Tables) -> None:
    with pytest.raises(InputError, match="all known"):
        fine_tune(base, *old)
    without = Predictor.of(replace(base.fitted_, replay=None), "v0", NETWORK, TRAINING)
    with pytest.raises(InputError, match="train it again"):
        fine_tune(without, *new)


@pytest.mark.usefixtures("hand_made")
def test_the_command(said: dict[str, Any], home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said["ancestors"] == [load(home / "m1").version]
    comparison = said["comparison"]
    assert set(comparison) == {
        f"{when} {side} sets" for when in ("before", "after") for side in ("new", "old")
    }
    assert comparison["after new sets"]["mape_percent"] < comparison["before new sets"]["mape_percent"] / 3
    assert load(home / "m2").version == said["model_version"]
    card = (home / "m2" / "MODEL_CARD.md").read_text()
    assert f"Fine-tuned from {said['ancestors'][0]}; the last time on 10 new sets" in card
    logged = mlflow.get_run(said["run_id"]).data
    assert logged.params["from"] == said["ancestors"][0]
    assert logged.metrics["after new sets mape_percent"] == comparison["after new sets"]["mape_percent"]
    # Under the names that a training logs
    assert logged.metrics["learned sets mape_percent"] == pytest.approx(
        comparison["after new sets"]["mape_percent"]
    )
    history = mlflow.MlflowClient().get_metric_history(said["run_id"], "loss network 1")
    assert history[-1].step == len(history)
    assert "cannot be combined with --from" in refused(capsys, *command(home, "--config", "c.yaml"))
    before = (home / "m2" / "config.json").read_bytes()
    message = " ".join(refused(capsys, *command(home)).split())
    assert "m2 has a config.json: expected a new folder" in message
    assert (home / "m2" / "config.json").read_bytes() == before


@pytest.mark.usefixtures("hand_made")
def test_a_fine_tuned_version_is_promoted_on_unseen_sets(home: Path, new: Tables, tmp_path: Path) -> None:
    before, store = mlflow.get_tracking_uri(), empty_store(tmp_path / "mlflow.db")
    try:
        shutil.copytree(home / "m1", tmp_path / "m2")
        old = (tmp_path / "m2" / "config.json").read_bytes()
        fine_tune_run(
            str(home / "m1"), home / "tables", tmp_path / "m2", QUICK, tracking_uri=store, force=True
        )
        assert (tmp_path / "m2" / "config.json").read_bytes() != old
        answer = promote("1", graph_source=graph_source)
        assert not answer["promoted"]
        assert "version 1 has no stored predictions of pairs held out of its training" in answer["reason"]
        answer = promote("1", home / "tables", graph_source=graph_source)
        assert not answer["promoted"]  # it learned from all of them
        assert "sets learned by version 1" in answer["reason"]
        for name, table in zip(("colocation", "solo"), new, strict=True):
            ids = {"set_id": "later-" + table.set_id.astype(str)} if name == "colocation" else {}
            write_table(tmp_path / "later", name, table.assign(**ids))
        answer = promote("1", tmp_path / "later", graph_source=graph_source)
        scores = answer["same_rows"]["metrics"]
        better = scores["challenger"]["mape_percent"] <= 1.001 * scores["incumbent"]["mape_percent"]
        assert answer["promoted"] == better
        assert scores["challenger"]["n"] == scores["incumbent"]["n"] == len(new[0])
        assert answer["same_rows"]["left_out"] == {"challenger": 0, "incumbent": 0}
        answer = promote("1", force=True)
        assert answer["promoted"] is answer["version"]["champion"] is True
    finally:
        mlflow.set_tracking_uri(before)


@pytest.mark.usefixtures("hand_made")
def test_one_run_at_a_time_writes_to_a_folder(home: Path, tmp_path: Path) -> None:
    """A fine-tuning or a training: both take the lock in `OUT.progress`."""
    given = (str(home / "m1"), home / "tables", tmp_path / "m2", QUICK)
    store = empty_store(tmp_path / "mlflow.db")
    with (
        only_writer(tmp_path / "m2.progress"),
        pytest.raises(ConflictError, match=r"another process writes to .*m2\.progress"),
    ):
        fine_tune_run(*given, tracking_uri=store)
    (tmp_path / "m2.progress" / "encoder.safetensors").touch()  # a killed training's

    def appear(*_: object) -> None:
        with pytest.raises(ConflictError):
            fine_tune_run(*given, tracking_uri=store)
        shutil.copytree(home / "m1", tmp_path / "m2", dirs_exist_ok=True)

    with pytest.raises(ConflictError, match="appeared during the run"):
        fine_tune_run(*given, tracking_uri=store, report=appear)
    assert (tmp_path / "m2.progress" / "encoder.safetensors").exists()
    for file in ("config.json", "weights.safetensors"):
        assert (tmp_path / "m2" / file).read_bytes() == (home / "m1" / file).read_bytes()


@pytest.mark.usefixtures("hand_made")
def test_a_full_disk_leaves_the_earlier_predictor_with_its_card(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, store = tmp_path / "m2", empty_store(tmp_path / "mlflow.db")
    shutil.copytree(home / "m1", out)
    (out / "MODEL_CARD.md").write_text("card of m1")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}

    def full(path: Path, *_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("predictor.training.run.write_whole", full)
    with pytest.raises(OSError, match="No space left"):
        fine_tune_run(str(home / "m1"), home / "tables", out, QUICK, tracking_uri=store, force=True)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert {path.name for path in tmp_path.iterdir()} == {"m2", "mlflow.db"}


@pytest.mark.usefixtures("hand_made")
@pytest.mark.parametrize("lost", ["tables", "artifacts"])
def test_a_predictor_that_could_not_be_registered_is_written_and_registered_later(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lost: str
) -> None:
    from serving.cli.main import main

    before, out, store = mlflow.get_tracking_uri(), tmp_path / "m2", empty_store(tmp_path / "mlflow.db")

    def lose(*_: object) -> None:
        if lost == "artifacts":
            (tmp_path / "mlartifacts").write_text("")
            return
        with sqlite3.connect(tmp_path / "mlflow.db") as database:
            database.execute("ALTER TABLE registered_models RENAME TO lost")

    monkeypatch.setattr(
        "predictor.training.fine_tuning.FineTuning", partial(FineTuning, epochs=3, cross_fits=1)
    )
    given = command(home, "--out", str(out), "--tracking-uri", store)
    try:
        with monkeypatch.context() as patch:
            patch.setattr("predictor.training.fine_tuning_run.log_tables", lose)
            with pytest.raises(SystemExit) as done:
                main(given)
        assert done.value.code == 1
        said = " ".join(capsys.readouterr().err.split())
        assert f"the predictor is written to {out} but not registered: got " in said
        assert f"once the MLflow store works, `cotenant models register {out}` (with the same" in said
        assert json.loads((out / "metrics.json").read_text())["comparison"].keys() >= {"after new sets"}
        assert [path.name for path in tmp_path.glob("*.progress")] == []
        if lost == "artifacts":
            (tmp_path / "mlartifacts").unlink()
        else:
            empty_store(tmp_path / "mlflow.db")
        with pytest.raises(SystemExit) as done:
            main(["models", "register", str(out), "--tracking-uri", store, "--json"])
        assert not done.value.code
        registered = json.loads(capsys.readouterr().out)
        assert registered["version"] == "1"
        scores = mlflow.get_run(registered["run_id"]).data.metrics
        assert "after new sets mape_percent" in scores
        assert load_predictor("models:/cotenant/1").version == load(out).version
        with pytest.raises(SystemExit):
            main(["models", "register", str(out), "--tracking-uri", store])
        assert "already registered as version 1" in capsys.readouterr().out
    finally:
        mlflow.set_tracking_uri(before)
