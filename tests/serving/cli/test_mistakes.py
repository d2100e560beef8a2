"""Misspellings on the command line are reported before torch is imported, which takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import refused

MISTAKES = {
    "trace": "simulate --trace nosuch --cluster small-mixed --policy fifo",
    "key of a trace": "compare --trace synthetic:rat=30,jobs=10 --cluster small-mixed --policies fifo,isacpp",
    "columns of a trace": "simulate --trace {}/odd.csv --cluster small-mixed",
    "predictor": "simulate --trace synthetic:rate=30,jobs=10 --cluster small-mixed --model nosuch",
    "job": "predict --device v100 --job resnt18-cifar",
    "job after one's own": "predict --device v100 --job own:model --job resnt18-cifar",
    "network of a collection": "predict --device v100 --job timm/resnt50",
    "file of a job": "predict --device v100 --job nosuch.onnx",
    "graph of a job": "predict --device v100 --job nosuch.json",
    "model of predict": "predict --device v100 --job resnet18-cifar --model nosuch",
    "job of place": "place --cluster small-mixed --job resnt18-cifar",
    "capture": "capture resnt18-cifar",
    "pipeline": "plan pipeline resnt18-cifar --device v100 --workers 4 --bandwidth 1e9",
    "slices": "plan slices --device a100 --job resnt18-cifar",
    "profile": "profile --device cpu --job resnt18-cifar -o {}/measured",
    "probe": "probe --device v100 --job resnt18-cifar",
    "partner of a probe": "probe --device v100 --job resnet18-cifar --running lstm",
    "matrix": "matrix --device v100 --job resnt18-cifar",
    "campaign": "campaign plan --job resnt18-cifar -o {}/plan.json",
    "zoo check": "zoo check resnt18-cifar",
    "tenant": "cluster validate {}/cluster.yaml",
    "tables of evaluate": "evaluate --data {}/nosuch",
    "table of a target": "evaluate --data {}/nosuch --target memory",
    "target of evaluate": "evaluate --data {} --target nosuch",
    "split beside observations": "evaluate --data {} --observe 2 --split by-model",
    "graphs alone beside observations": "evaluate --data {} --observe 2 --graph-only",
    "split of evaluate": "evaluate --data {} --split nosuch",
    "tables of train": "train --data {}/nosuch --out {}/model",
    "observations": "feedback {}/nosuch.csv",
    "serve": "serve --model nosuch",
    "protocol": "benchmark run nosuch",
    "command": "predct --device v100 --job resnet18-cifar",
    "option of a job": "predict --device v100 --job resnet18-cifar:batch=64",
    "policy": "compare --trace synthetic:rate=30,jobs=10 --cluster small-mixed --policies fif",
    "source of data": "data import gavl {} -o {}/tables",
    "exported model": "models export --model nosuch -o {}/onnx",
}
# Runs each command in turn and says which of them imported torch, or did not end with exit code 2.
_SCRIPT = """
import json, sys
from serving.cli.main import main
from tests.commands import refused
wrong = {}
for name, words in json.load(sys.stdin).items():
    try:
        main(words)
        wrong[name] = "exit code 0"
    except SystemExit as error:
        if error.code != 2:
            wrong[name] = f"exit code {error.code}"
    if "torch" in sys.modules:
        wrong[name] = "torch was imported"
        break
print("\\n" + json.dumps(wrong))
"""


def test_mistakes_are_reported_without_torch(tmp_path: Path) -> None:
    (tmp_path / "odd.csv").write_text("a,b\n1,2\n")
    (tmp_path / "cluster.yaml").write_text(
        "nodes: [{name: n, gpus: [{device: v100, tenants: [{job: resnt18-cifar, iterations_left: 9}]}]}]\n"
    )
    commands = {name: words.replace("{}", str(tmp_path)).split() for name, words in MISTAKES.items()}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == {}
    assert done.stderr.count("cotenant: ") == len(MISTAKES)


@pytest.mark.parametrize("words", ["zoo list --json", "cluster list --json", "devices list --json"])
def test_lists_need_no_torch(words: str) -> None:
    script = f"import sys; from serving.cli.main import main; main({words.split()!r})"
    script = (
        script.replace("main([", "\ntry:\n    main([")
        + "\nexcept SystemExit: pass\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)


@pytest.mark.parametrize("gpus", ["0", "-3"])
def test_slices_need_at_least_one_card(gpus: str, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ("plan", "slices", "--device", "a100", "--job", "resnet18-cifar", "--gpus", gpus)
    assert "--gpus" in refused(capsys, *ask)
