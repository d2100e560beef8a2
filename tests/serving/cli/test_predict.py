from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests.commands import printed, refused, run
from tests.serving.cli.checkpoint import folder

__all__ = ["folder"]
JOBS = ("--job", "alpha:batch_size=32,memory_bytes=2000000000", "--job", "beta:memory_bytes=2000000000")


def test_json_and_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ("predict", "--model", folder / "model", "--device", "v100", *JOBS)
    out = printed(capsys, *ask, "--json")
    body = json.loads(out)
    assert body["fits"] is True
    assert [m["job"].split(":")[0] for m in body["members"]] == ["alpha", "beta"]
    assert body["model_version"].startswith("model-")
    out = printed(capsys, *ask)
    assert "slowdown" in out
    assert "fits: at most" in out


def test_no_number_is_cut_in_a_narrow_terminal(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = (
        "predict",
        "--device",
        "v100",
        "--model",
        folder / "model",
        "--job",
        "alpha:batch_size=32",
        "--job",
        "beta",
    )
    shown = []
    for columns in ("200", "40"):
        monkeypatch.setenv("COLUMNS", columns)
        shown.append(printed(capsys, *ask).partition("- fits")[0])
    wide, narrow = (sorted(word for word in text.split() if "." in word) for text in shown)
    assert wide == narrow


def test_a_set_that_does_not_fit_exits_with_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = ("--job", "alpha:memory_bytes=12000000000")
    code, out, _ = run(
        capsys, "predict", "--model", folder / "model", "--device", "v100", *job, *job, "--json"
    )
    assert code == 1
    assert json.loads(out)["fits"] is False


def test_frozen_prefix_of_jobs_without_their_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = ("--job", "gamma:frozen_prefix=1", "--job", "delta", "--job", "alpha:frozen_prefix=0")
    ask = ("predict", "--model", folder / "model", "--device", "v100", *jobs)
    members = json.loads(run(capsys, *ask, "--frozen-prefix", "2", "--json")[1])["members"]
    assert [m["job"] for m in members] == ["gamma:frozen_prefix=1", "delta:frozen_prefix=2", "alpha"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--device", "abacus", "--job", "alpha"), "abacus"),
        (("--device", "v100", "--job", "omega"), "omega"),
        (("--device", "v100", "--job", "alpha:batch_size=0"), "batch_size"),
        (("--device", "v100", "--job", "alpha:colour=red"), "colour"),
        (("--device", "v100", "--job", "alpha", "--sharing", "turns"), "sharing"),
        (("--device", "v100", "--job", "alpha", "--model", "nowhere"), "nowhere"),
    ],
)
def test_bad_input_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], word: str
) -> None:
    model = () if "--model" in arguments else ("--model", folder / "model")
    code, out, err = run(capsys, "predict", *arguments, *model)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert word in err


def test_evaluate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ("evaluate", "--data", folder / "tables", "--model", folder / "model")
    out = printed(capsys, *ask, "--json")
    body = json.loads(out)
    assert body["left_out"] == 10
    assert set(body["by_device"]) == {"p100"}
    assert {"n", "mape_percent", "r2", "coverage_90"} <= set(body["metrics"])
    assert set(body["targets"]) == {"memory", "utilization"}
    assert "10 sets that the model was trained on" in run(capsys, *ask)[1]
    assert run(capsys, *ask, "--split", "by-moon")[0] == 2
    assert run(capsys, "evaluate", "--data", folder / "nowhere", "--model", folder / "model")[0] == 2


@pytest.mark.parametrize("options", [(), ("--split", "by-device"), ("--target", "step-time")])
def test_evaluate_writes_the_rows_of_its_figures(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    ask = ("evaluate", "--data", folder / "tables", "--model", folder / "model", *options)
    metrics = json.loads(printed(capsys, *ask, "--rows", tmp_path / "rows.csv", "--json"))["metrics"]
    rows = pd.read_csv(tmp_path / "rows.csv")
    apart = (rows["predicted"] / rows["measured"] - 1).abs()
    inside = rows["measured"].between(rows["lower"], rows["upper"])
    assert len(rows) == metrics["n"]
    assert 100 * apart.mean() == pytest.approx(metrics["mape_percent"])
    assert inside.mean() == pytest.approx(metrics["coverage_90"])


def test_evaluate_scores_what_predict_answers_as_well(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = ("evaluate", "--data", folder / "tables", "--model", folder / "model")
    out = json.loads(printed(capsys, *ask, "--rows", tmp_path / "rows.csv", "--json"))
    rows = pd.read_csv(tmp_path / "rows.csv")
    assert out["measured_alone"] == len(rows)
    one = rows[rows["set_id"] == rows["set_id"].iloc[0]]
    jobs = [word for job in one["job"] for word in ("--job", job)]
    device, sharing = one["device"].iloc[0], one["sharing"].iloc[0]
    predict = (
        "predict",
        "--model",
        folder / "model",
        "--device",
        device,
        "--sharing",
        sharing,
        *jobs,
        "--json",
    )
    ratios = [member["throughput_ratio"] for member in json.loads(run(capsys, *predict)[1])["members"]]
    for end, column in (("value", "answered"), ("lower", "answered_lower"), ("upper", "answered_upper")):
        assert [ratio[end] for ratio in ratios] == pytest.approx(one[column].tolist(), rel=1e-4)
    apart = (rows["answered"] / rows["measured"] - 1).abs()
    assert 100 * apart.mean() == pytest.approx(out["answers"]["mape_percent"])
    assert "as predict" in printed(capsys, *ask)


def test_evaluate_says_how_many_members_were_measured_alone(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folder / "tables", tmp_path / "tables")
    sets, solo = (pd.read_parquet(tmp_path / f"tables/{name}.parquet") for name in ("colocation", "solo"))
    sets.assign(solo_step_time_s=float("nan")).to_parquet(tmp_path / "tables/colocation.parquet")
    solo.assign(campaign="another").to_parquet(tmp_path / "tables/solo.parquet")
    out = printed(capsys, "evaluate", "--data", tmp_path / "tables", "--model", folder / "model")
    assert "solo step time known for 0 of" in out


def test_evaluate_names_the_targets_that_a_folder_allows(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(folder / "tables" / "solo.parquet", tmp_path)
    err = refused(capsys, "evaluate", "--data", tmp_path)
    assert "colocation" in err
    assert "choose --target step-time" in err
