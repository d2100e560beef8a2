from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as tensors_to_bytes

from predictor import load_predictor
from predictor.config import TrainingConfig
from predictor.fitted.checkpoint import FILES, load, save
from predictor.predictor import Predictor
from profiling.errors import InputError, UnavailableError, UnknownNameError
from profiling.workload import ColocationSet, Workload
from tests.predictor.synthetic import graph_source

SETS = [
    ColocationSet("v100", (Workload("alpha", 32), Workload.parse("beta:batch_size=32,step_time_s=0.03"))),
    ColocationSet("p100", (Workload("gamma"), Workload("delta"), Workload("delta", 8)), "mps"),
]


@pytest.fixture
def saved(predictor: Predictor, tmp_path: Path) -> Path:
    version = predictor.version
    folder = save(predictor, tmp_path / "model")
    predictor.version = version
    return folder


def without_digests(folder: Path) -> None:
    """As written by earlier versions."""
    config = json.loads((folder / "config.json").read_text())
    del config["digests"]
    (folder / "config.json").write_text(json.dumps(config))


def test_digests_may_be_absent(saved: Path) -> None:
    before = load(saved, graph_source).predict_many(SETS)
    without_digests(saved)
    assert load(saved, graph_source).predict_many(SETS) == before


def test_round_trip(predictor: Predictor, saved: Path) -> None:
    again = load(saved, graph_source)
    first, second = predictor.predict_arrays(SETS), again.predict_arrays(SETS)
    for name in ("slowdown", "step_time_s", "memory_bytes", "utilization_ratio", "fits"):
        np.testing.assert_allclose(getattr(first, name), getattr(second, name), rtol=1e-6)
    for before, after in zip(predictor.predict_many(SETS), again.predict_many(SETS), strict=True):
        assert [m.in_domain for m in before.members] == [m.in_domain for m in after.members]
        assert before.members[0].slowdown.upper == pytest.approx(after.members[0].slowdown.upper)
    assert again.version.startswith("model-")
    assert again.fitted_.manifest == predictor.fitted_.manifest
    assert again.fitted_.heads == predictor.fitted_.heads
    assert again.fitted_.intervals == predictor.fitted_.intervals
    assert load_predictor(str(saved), graph_source).version == again.version


def test_same_weights_same_version(predictor: Predictor, saved: Path, tmp_path: Path) -> None:
    assert load(saved, graph_source).version == load(save(load(saved), tmp_path / "b" / "model")).version


def test_contains_no_code(saved: Path) -> None:
    assert {p.relative_to(saved).as_posix() for p in saved.rglob("*") if p.is_file()} == {
        "weights.safetensors",
        "config.json",
        "manifest.json",
        "cost/cost.safetensors",
        "cost/card.json",
    }


def test_unknown_name_and_empty_folder(tmp_path: Path) -> None:
    for name in ("nowhere", ""):
        with pytest.raises(UnknownNameError, match="no such predictor"):
            load_predictor(name)
    with pytest.raises(InputError, match=r"config\.json"):
        load(tmp_path)
    with pytest.raises(UnavailableError, match="not been fitted"):
        save(Predictor(), tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["weights.safetensors", "config.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "garbage", "empty"])
def test_damage_is_one_error(saved: Path, name: str, damage: str) -> None:
    file = saved / name
    body = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(
            {"truncated": body[: len(body) // 2], "garbage": b"\x80\x04" * 50, "empty": b""}[damage]
        )
    with pytest.raises(InputError) as caught:
        load(saved)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_of_an_earlier_version_is_identified(saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({**config, "version": 9}))
    (saved / "cost" / "card.json").unlink()
    with pytest.raises(InputError, match="got cotenant-predictor 9"):
        load(saved)


@pytest.mark.parametrize(
    "name", ["weights.safetensors", "manifest.json", "cost/card.json", "cost/cost.safetensors"]
)
def test_a_missing_file_is_named(saved: Path, name: str) -> None:
    (saved / name).unlink()
    with pytest.raises(InputError, match=rf"is incomplete: .*got no {name}; copy the whole folder"):
        load(saved)


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("version", 99, r"this version: expected .* 10, got cotenant-predictor 99; train it again"),
        ("format", "something else", "this version"),
        ("features", {}, "different features"),
        ("networks", 7, "damaged"),
        ("networks", "many", "damaged"),
        ("networks", 0, "damaged"),
        ("network", {"width": 4}, "damaged"),
        ("heads", {}, "damaged"),
        ("campaigns", ["a", "b", "c"], "damaged"),
    ],
)
def test_a_changed_configuration_is_refused(saved: Path, key: str, value: Any, word: str) -> None:
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(InputError, match=word):
        load(saved)


@pytest.mark.parametrize(
    ("file", "path"),
    [
        ("config.json", "domain_radius"),
        ("config.json", "heads.context_bytes"),
        ("config.json", "heads.memory_log_error.0"),
        ("config.json", "intervals.floor"),
        ("config.json", "intervals.quantile.graph"),
        ("config.json", "process.parameters.both"),
        ("config.json", "process.parameters.knee"),
        ("config.json", "campaigns.0"),
        ("manifest.json", "coverage.devices.0"),
        ("manifest.json", "largest_set"),
    ],
)
@pytest.mark.parametrize("value", [None, "x", [], {}])
def test_a_value_of_another_type_is_damage(saved: Path, file: str, path: str, value: Any) -> None:
    body = json.loads((saved / file).read_text())
    *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    inner = body
    for key in parents:
        inner = inner[key]
    if isinstance(inner[last], str) and isinstance(value, str):
        value = 1.5
    inner[last] = value
    (saved / file).write_text(json.dumps(body))
    without_digests(saved)
    with pytest.raises(InputError, match=rf"is damaged: .*{last!s}"):
        load(saved)


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "1e999"])
@pytest.mark.parametrize(
    ("file", "path"),
    [
        ("config.json", "heads.memory_log_error.0"),
        ("config.json", "intervals.floor"),
        ("manifest.json", "largest_set"),
    ],
)
def test_a_number_that_is_not_finite_is_damage(saved: Path, file: str, path: str, text: str) -> None:
    body = json.loads((saved / file).read_text())
    *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    inner = body
    for key in parents:
        inner = inner[key]
    inner[last] = "HERE"
    (saved / file).write_text(json.dumps(body).replace('"HERE"', text))
    with pytest.raises(InputError, match=rf"is damaged: .*{path} is (nan|-?inf)"):
        load(saved)


@pytest.mark.parametrize("name", ["quantile", "device_factor"])
def test_intervals_without_a_group_are_damage(saved: Path, name: str) -> None:
    config = json.loads((saved / "config.json").read_text())
    del config["intervals"][name]["graph"]
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"is damaged: .*graph"):
        load(saved)


@pytest.mark.parametrize("body", ["[]", "null", "{}"])
def test_json_of_the_wrong_shape(saved: Path, body: str) -> None:
    for name in ("config.json", "manifest.json"):
        kept = (saved / name).read_text()
        (saved / name).write_text(body)
        if (name, body) != ("manifest.json", "{}"):
            with pytest.raises(InputError):
                load(saved)
        (saved / name).write_text(kept)


@pytest.mark.parametrize("name", ["manifest.json", "cost/card.json", "cost/cost.safetensors"])
def test_a_file_of_another_checkpoint_is_damage(saved: Path, name: str) -> None:
    """As a save that was killed between two files leaves it."""
    body = (saved / name).read_bytes()
    other = body.replace(b'"set_ids": [', b'"set_ids": ["another-set",').replace(b'"format"', b' "format"')
    (saved / name).write_bytes(body[:-1] + b"\0" if other == body else other)
    with pytest.raises(InputError, match=f"{name} is not the one that was written with the weights"):
        load(saved)


def rewritten(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Change the tensors of a checkpoint and the digest in its version."""
    tensors = load_tensors((folder / "weights.safetensors").read_bytes())
    change(tensors)
    body = tensors_to_bytes(tensors)
    (folder / "weights.safetensors").write_bytes(body)
    config = json.loads((folder / "config.json").read_text())
    config["model_version"] = f"changed-{hashlib.sha256(body).hexdigest()[:10]}"
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    "name",
    ["networks.0.enter.weight", "encoder.enter.weight", "scaler.mean", "domain.points", "process.mean"],
)
@pytest.mark.parametrize("damage", ["NaN", "shape"])
def test_damaged_tensors_are_damage(saved: Path, name: str, damage: str) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name] = (
            tensors[name][..., 1:].clone() if damage == "shape" else torch.full_like(tensors[name], torch.nan)
        )

    rewritten(saved, change)
    with pytest.raises(InputError, match=rf"damaged.*{'NaN' if damage == 'NaN' else 'shape|size'}"):
        load(saved)


def test_a_disk_that_fills_up_leaves_an_earlier_checkpoint_as_it_was(
    predictor: Predictor, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {file: file.read_bytes() for file in saved.rglob("*") if file.is_file()}
    network = deepcopy(predictor.fitted_.model.networks[0])
    network.slow.bias.data += 1.0
    model = replace(predictor.fitted_.model, networks=[network])
    other = Predictor.of(replace(predictor.fitted_, model=model), "other", model.config, TrainingConfig())

    def full(path: Path, *_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("predictor.fitted.checkpoint.write_json", full)
    with pytest.raises(OSError, match="No space left"):
        save(other, saved)
    assert {file: file.read_bytes() for file in saved.rglob("*") if file.is_file()} == before
    assert {path.name for path in saved.iterdir()} == {*(Path(name).parts[0] for name in FILES)}


def test_what_a_killed_save_left_is_removed(saved: Path) -> None:
    again = load(saved)
    (saved / ".new/cost").mkdir(parents=True)
    (saved / ".new/weights.safetensors").write_bytes(b"half")
    save(again, saved)
    assert not (saved / ".new").exists()
    assert load(saved).version == again.version


def test_the_working_folder_gives_the_version_its_name(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    version = predictor.version
    save(predictor, ".")
    predictor.version = version
    assert load(tmp_path, graph_source).version.startswith(f"{tmp_path.name}-")
