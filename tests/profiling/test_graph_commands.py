"""The zoo, capture and devices commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiling.capture.factory import PASSED
from profiling.workload import OPTIMIZERS, PRECISIONS
from tests.commands import printed, run


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def answer(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Any:
    return json.loads(printed(capsys, *arguments, "--json"))


def test_help_of_capture_names_every_choice(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "capture", "--help")
    assert [name for name in (*OPTIMIZERS, *PRECISIONS, *PASSED) if name not in out] == []


def test_zoo_list(capsys: pytest.CaptureFixture[str]) -> None:
    models = {m["name"]: m for m in answer(capsys, "zoo", "list")}
    assert models["resnet50-imagenet"]["parameters"] == 25_557_032
    code, out, _ = run(capsys, "zoo", "list")
    assert code == 0
    assert "td3-bipedalwalker" in out


def test_zoo_check(capsys: pytest.CaptureFixture[str]) -> None:
    body = answer(capsys, "zoo", "check", "ppo-lunarlander", "neumf-ml1m")
    assert [m["matches"] for m in body["models"]] == [True, True]
    assert body["mismatches"] == []
    code, out, _ = run(capsys, "zoo", "check", "ppo-lunarlander")
    assert code == 0
    assert "1 of 1 match" in out
    assert run(capsys, "zoo", "check", "resnet99")[0] == 2


def test_zoo_check_fails_if_a_count_differs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from profiling.zoo import reinforcement

    wrong = tuple(replace(entry, parameters=1) for entry in reinforcement.ENTRIES)
    monkeypatch.setattr(reinforcement, "ENTRIES", wrong)
    code, out, _ = run(capsys, "zoo", "check", "ppo-lunarlander")
    assert code == 1
    assert "differs" in out


def test_capture_of_a_zoo_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    graph, plot = tmp_path / "graph.json", tmp_path / "graph.svg"
    options = ("--batch-size", "64", "--optimizer", "adam", "-o", graph, "--plot", plot)
    body = answer(capsys, "capture", "neumf-ml1m", *options)
    assert body["batch_size"] == 64
    assert body["options"]["optimizer"] == "adam"
    assert body["optimizer_state_bytes"] == 8 * 1_602_657
    from profiling.graph import ComputationGraph

    assert ComputationGraph.load(graph).content_hash == body["hash"]
    assert plot.read_text().startswith("<?xml")
    code, out, _ = run(capsys, "capture", "neumf-ml1m:batch_size=64,frozen_prefix=2")
    assert code == 0
    assert "1,602,657" in out


def test_capture_errors_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"nonsense")
    for arguments in (
        ("nothing-like-it",),
        (str(tmp_path / "none.onnx"),),
        (str(tmp_path / "bad.onnx"),),
        ("no_module:factory",),
        ("neumf-ml1m", "--precision", "fp7"),
        ("neumf-ml1m", "--batch-size", "0"),
        ("neumf-ml1m", "--frozen-prefix", "99"),
        ("neumf-ml1m", "--plot", str(tmp_path / "x.gif")),
    ):
        code, out, err = run(capsys, "capture", *arguments)
        assert code == 2, arguments
        assert out == ""
        assert err.startswith("cotenant: ")
        assert err.count("\n") == 1


def test_capture_of_a_factory(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_model.py").write_text(
        "import torch\ndef make(batch_size=2):\n    return torch.nn.Linear(8, 2), torch.randn(batch_size, 8)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert answer(capsys, "capture", "my_model:make", "--batch-size", "5")["forward_flops"] == 2 * 5 * 8 * 2


def test_a_failing_factory_shows_its_own_traceback_with_debug(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_failing_model.py").write_text("def make():\n    return [][3]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    code, _, err = run(capsys, "capture", "my_failing_model:make")
    assert (code, err.count("\n")) == (2, 1)
    for arguments in (
        ("capture", "my_failing_model:make", "--debug"),
        ("--debug", "capture", "my_failing_model:make"),
    ):
        code, _, err = run(capsys, *arguments)
        assert code == 2
        assert "return [][3]" in err
        assert err.splitlines()[-1].startswith("cotenant: ")


def test_devices(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    body = answer(capsys, "devices", "list")
    assert {"v100", "a100", "cpu"} <= {d["name"] for d in body["devices"]}
    assert body["discovered"][-1]["name"] == "cpu"
    assert answer(capsys, "devices", "show", "v100")["memory_bytes"] == 16 * 2**30
    path = tmp_path / "mine.yaml"
    path.write_text(
        "mine: {sm_count: 4, clock_hz: 1e9, fp32_flops: 1e12, memory_bytes: 1e9, memory_bandwidth_bytes_per_s: 1e11}\n"
    )
    assert answer(capsys, "devices", "show", "mine", "--file", str(path))["sm_count"] == 4
    code, _, err = run(capsys, "devices", "show", "gtx-1")
    assert code == 2
    assert "not in the catalogue" in err
    assert run(capsys, "devices", "list")[0] == 0
