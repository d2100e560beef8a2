"""Options that would have no effect are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from datasets.tables import empty_table, write_table
from scheduling.policies import RESIZING
from tests.commands import printed, refused

SYNTHETIC = "--trace synthetic:rate=30,jobs=3 --cluster small-mixed"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("evaluate --data {} --probes chosen", "--probes has no effect without --observe"),
        ("data validate {}/mine.csv --replace", "--replace has no effect without --out"),
        (f"simulate {SYNTHETIC} --kind rigid", "--kind has no effect without --trace sia:FILE"),
        (
            f"simulate {SYNTHETIC} --data {{}} --belief truth --model default",
            "--model has no effect with --data and --belief truth",
        ),
        (
            "compare --trace sia:log.csv --cluster sia-64 --policies fifo,sia --seeds 3",
            "--seeds has no effect with --trace sia:FILE",
        ),
        (
            "simulate --trace sia:log.csv --cluster sia-64 --belief truth",
            "--belief has no effect with --trace sia:FILE",
        ),
        (f"compare {SYNTHETIC} --gantt-filter v100", "--gantt-filter has no effect without --out"),
        (f"compare {SYNTHETIC} --ray --workers 2", "--workers has no effect with --ray"),
        ("campaign plan --share-models 2", "--share-models has no effect without --sm-share"),
        ("campaign plan --job resnet18-cifar --jobs 2", "--jobs has no effect with --job"),
        (
            "plan pipeline vgg16-imagenet --device v100 --workers 4 --bandwidth 1e9 --microbatches 4",
            "--microbatches has no effect without --schedule or --plot",
        ),
        (
            "plan pipeline vgg16-imagenet --device v100 --workers 4 --bandwidth 1e9 --chunks 4",
            "--chunks has no effect without --schedule interleaved",
        ),
        ("cluster import kubectl {}/mine.csv --node a", "--node has no effect with kubectl"),
        (f"simulate {SYNTHETIC} --policy fifo --elastic 0.5", "--elastic applies to none of these policies"),
        (f"simulate {SYNTHETIC} --policy static-mig:3g+3g --elastic 0.5", "--elastic applies to none"),
        (f"compare {SYNTHETIC} --policies fifo,miso --elastic 1", "none of these policies"),
        (
            "serve --database sqlite:///{}/mine.db token add someone --scope read",
            "--database has no effect before `token`",
        ),
        (
            "serve --tracking-uri http://127.0.0.1:5000 --port 70000",
            "--tracking-uri has no effect without --model models:/NAME@ALIAS",
        ),
        ("train --data {} --from default --no-baselines", "--no-baselines has no effect with --from"),
    ],
)
def test_options_without_effect(
    command: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.csv").write_text("a\n1\n")
    write_table(tmp_path, "colocation", empty_table("colocation"))
    assert message in refused(capsys, *command.replace("{}", str(tmp_path)).split())


def test_every_listed_policy_resizes_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = ("--trace", "synthetic:rate=60,jobs=6", "--cluster", "a100-8", "--seed", "1")
    ask = ("compare", *jobs, "--policies", ",".join(RESIZING), "--json")
    rigid, elastic = (
        [policy["mean_jct_s"] for policy in json.loads(printed(capsys, *ask, *more))["policies"]]
        for more in ((), ("--elastic", "1"))
    )
    assert all(a != b for a, b in zip(rigid, elastic, strict=True))


def test_a_description_of_columns_is_written_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "data", "template", "--describe", "--out", tmp_path / "columns.txt") == ""
    assert "throughput_ratio: " in (tmp_path / "columns.txt").read_text()
