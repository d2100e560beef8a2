"""The measuring commands as users call them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiling.errors import UnavailableError
from profiling.measure.record import failed_record
from profiling.measure.request import RunRequest
from profiling.measure.settings import MeasureSettings
from tests.commands import printed, refused


def test_profile_of_a_zoo_job_with_operators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from datasets.tables import read_table

    # Without an optimiser: the first step of one imports torch's compiler, which takes longer than the rest.
    job = "ppo-lunarlander:batch_size=8,optimizer=none"
    arguments = ["profile", "--device", "cpu", "--job", job, "-o", str(tmp_path)]
    quick = ["--repeats", "2", "--window", "0.1", "--steps", "2", "--operators", "--json"]
    answer = json.loads(printed(capsys, *arguments, *quick))
    assert answer["tables"]["solo"] == 1
    assert answer["records"][0]["members"][0]["outcome"] == "ok"
    assert read_table(tmp_path, "solo")["step_time_s"].gt(0).all()
    assert read_table(tmp_path, "graphs")["forward_time_s"].sum() > 0
    assert len(list((tmp_path / "graphs").glob("*.graph.txt"))) == 1


def test_another_profile_adds_to_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from datasets.tables import read_table

    def profile(batch: int) -> dict[str, int]:
        job = f"ppo-lunarlander:batch_size={batch},optimizer=none"
        quick = ["--repeats", "1", "--window", "0.05", "--steps", "2", "--json"]
        out = printed(capsys, "profile", "--device", "cpu", "--job", job, "-o", tmp_path, *quick)
        counts: dict[str, int] = json.loads(out)["tables"]
        return counts

    assert [profile(batch)["solo"] for batch in (8, 16, 8)] == [1, 2, 2]
    assert sorted(read_table(tmp_path, "solo")["batch_size"]) == [8, 16]
    stored = json.loads((tmp_path / "measurements.json").read_text())
    for other in (stored | {"campaign": "of another machine"}, {}, []):
        (tmp_path / "measurements.json").write_text(json.dumps(other))
        error = refused(capsys, "profile", "--device", "cpu", "--job", "ppo-lunarlander", "-o", tmp_path)
        assert "holds other measurements" in error


JOBS = "tests.profiling.measure.jobs"


@pytest.mark.parametrize(
    "job",
    [
        "resnet18-cifar:batch_size=0",
        "no-such-model",
        f"{JOBS}:no_such_factory",
        f"{JOBS}:fails",
        f"{JOBS}:captured:sequence_length=3",
        f"{JOBS}:captured:frozen_prefix=9",
    ],
)
def test_profile_of_an_unknown_job(job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, "profile", "--job", job, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_cached_activations_need_a_frozen_prefix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = ("--job", "ppo-lunarlander", "--cached-activations")
    assert "frozen_prefix" in refused(capsys, "profile", *job, "-o", tmp_path / "out")


def test_profile_on_cuda_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    job = ("--device", "cuda", "--job", "ppo-lunarlander")
    assert len(refused(capsys, "profile", *job, "-o", tmp_path / "out").strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_mig_is_a_sharing_mode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def measure(request: RunRequest, *_: object) -> dict[str, object]:
        asked.append(request.sharing)
        raise UnavailableError("no GPU here")

    monkeypatch.setattr("profiling.measure.run.measure", measure)
    jobs = ["--device", "cuda", "--job", "ppo-lunarlander", "-o", str(tmp_path / "out")]
    refused(capsys, "profile", *jobs, "--mig")
    assert asked == ["mig"]
    for other in ("--sharing=mps", "--sm-share=0.5"):
        assert "--mig cannot be combined with" in refused(capsys, "profile", *jobs, "--mig", other)
    assert asked == ["mig"]


def test_operators_of_a_job_with_an_sm_share_are_timed_on_all_sms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str, float]] = []

    def measure(request: RunRequest, *_: object) -> dict[str, object]:
        asked.append((request.kind, request.sharing, request.workloads[0].sm_share_ratio))
        if request.kind == "operators":
            raise UnavailableError("enough")
        return {"request": request.to_mapping()}

    monkeypatch.setattr("profiling.measure.run.measure", measure)
    share = ["--sm-share", "0.5", "--operators", "-o", str(tmp_path / "out")]
    assert "enough" in refused(capsys, "profile", "--device", "cuda", "--job", "ppo-lunarlander", *share)
    assert asked == [("solo", "mps", 0.5), ("operators", "time-slice", 1.0)]


def test_failed_operator_times_are_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(request: RunRequest, settings: MeasureSettings, *_: object) -> dict[str, object]:
        return failed_record(request, settings, "cpu", f"no {request.kind}", 1.0)

    monkeypatch.setattr("profiling.measure.run.measure", measure)
    out = tmp_path / "out"
    told = refused(capsys, "profile", "--operators", "--job", "ppo-lunarlander", "-o", out, code=1)
    assert "ppo-lunarlander: failed: no solo" in told
    assert "ppo-lunarlander: failed: no operators" in told


def test_a_failed_repetition_keeps_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from datasets.tables import read_table
    from tests.profiling.campaign.support import record_of

    def profile(code: int) -> list[str]:
        printed(capsys, "profile", "--job", "ppo-lunarlander", "-o", tmp_path, code=code)
        assert len(read_table(tmp_path, "solo")) == 1
        records = json.loads((tmp_path / "measurements.json").read_text())["records"]
        return [record["members"][0]["outcome"] for record in records]

    def fail(request: RunRequest, settings: MeasureSettings, *_: object) -> dict[str, object]:
        return failed_record(request, settings, "cpu", "out of memory", 1.0)

    monkeypatch.setattr(
        "profiling.measure.run.measure", lambda request, settings, _: record_of(request, settings)
    )
    assert profile(0) == ["ok"]
    with monkeypatch.context() as failing:
        failing.setattr("profiling.measure.run.measure", fail)
        assert profile(1) == ["ok", "failed"]
        assert profile(1) == ["ok", "failed"]
    assert profile(0) == ["ok"]


def test_a_full_folder_loses_no_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.commands import run
    from tests.profiling.campaign.support import record_of

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", str(tmp_path / "solo.parquet"))

    monkeypatch.setattr(
        "profiling.measure.run.measure", lambda request, settings, _: record_of(request, settings)
    )
    monkeypatch.setattr("profiling.measure.table_files.write_frames", full)
    ended, out, err = run(capsys, "profile", "--job", "ppo-lunarlander", "-o", tmp_path)
    assert (ended, "no space left" in err) == (2, True)
    assert "10.000" in out, "the step time in ms"
    assert len(json.loads((tmp_path / "measurements.json").read_text())["records"]) == 1


def test_plan_then_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    jobs = ["--job", "ppo-lunarlander:batch_size=8", "--job", "neumf-ml1m:batch_size=8"]
    options = ("--budget", "2m", "--model", "none", "-o", plan, "--json")
    runs = json.loads(printed(capsys, "campaign", "plan", *options, *jobs))["runs"]
    assert runs["solo"] == 2
    out = ("-o", tmp_path / "slices", "--json")
    for options in (("status", plan, *out), ("run", plan, *out, "--done", tmp_path / "nowhere")):
        assert "no campaign in" in refused(capsys, "campaign", *options), (
            "a misspelt folder is no empty campaign"
        )
    dry = json.loads(printed(capsys, "campaign", "run", plan, *out, "--dry-run"))
    assert len(dry["runs"]) == dry["total"] == sum(runs.values())
    assert not any(r["done"] for r in dry["runs"])
    for options in (("--limit", "9m"), ("--ray", "auto")):
        err = refused(capsys, "campaign", "run", plan, *out, "--dry-run", *options)
        assert f"{options[0]} has no effect with --dry-run" in err
    assert not (tmp_path / "slices").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [(["--model", "nowhere"], "no such predictor"), (["--frozen-models", "-2"], "frozen_models is out of range")],
)  # fmt: skip
def test_invalid_plans_are_explained(
    more: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--job", "ppo-lunarlander:batch_size=8", "-o", tmp_path / "p.json", *more)
    assert message in refused(capsys, "campaign", "plan", *options)
    assert not (tmp_path / "p.json").exists()


def test_missing_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no file" in refused(capsys, "campaign", "run", tmp_path / "no.json", "-o", tmp_path / "slices")
