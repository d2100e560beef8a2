from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from profiling.__main__ import app, main
from profiling.campaign import runner
from profiling.campaign.console import run as console_run
from profiling.campaign.console import status as console_status
from profiling.campaign.export import export_campaign
from profiling.campaign.plan import CampaignPlan, PlannedRun
from profiling.campaign.runner import parse_duration, run_campaign, status
from profiling.campaign.slices import SliceWriter
from profiling.errors import InputError
from profiling.measure.request import RunRequest
from profiling.measure.settings import MeasureSettings
from profiling.measure.sharing import SharesNotEnforcedError
from profiling.workload import Workload
from tests.profiling.campaign.support import record_of, small_plan


def stand_in(request: RunRequest, settings: MeasureSettings) -> dict[str, Any]:
    return record_of(request, settings)


def test_runs_only_what_is_left(tmp_path: Path) -> None:
    plan = small_plan(6)
    asked: list[str] = []

    def measure(request: RunRequest, settings: MeasureSettings) -> dict[str, Any]:
        asked.append(request.run_id(settings))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return stand_in(request, settings)

    with pytest.raises(KeyboardInterrupt):
        run_campaign(plan, tmp_path, measure=measure)
    assert status(plan, [tmp_path]).done == 2
    final = run_campaign(plan, tmp_path, measure=measure)
    assert (final.done, final.total, final.failed) == (6, 6, 0)
    assert len(asked) == 7
    run_campaign(plan, tmp_path, measure=measure)
    assert len(asked) == 7


def test_a_run_whose_shares_cannot_be_enforced_is_stored_as_failed_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("profiling.measure.environment.device_name", lambda _: "h200")
    jobs = [Workload("ppo-lunarlander", batch_size=size) for size in (8, 16)]
    limited = RunRequest("solo", (replace(jobs[0], sm_share_ratio=0.5),), "cuda", "mps")
    whole = RunRequest("solo", (jobs[1],), "cuda")
    plan = CampaignPlan("shares", "cuda", (PlannedRun(limited, 30.0), PlannedRun(whole, 1.0)))

    def measure(request: RunRequest, settings: MeasureSettings) -> dict[str, Any]:
        if request == limited:
            raise SharesNotEnforcedError("SM shares cannot be enforced", got="no MPS here")
        return stand_in(request, settings)

    final = run_campaign(plan, tmp_path, measure=measure)
    assert (final.done, final.failed) == (2, 1)
    counts = export_campaign([tmp_path], tmp_path / "tables", "shares")
    assert (counts["solo"], counts["measurements"]) == (1, 2)
    assert "no MPS here" in (tmp_path / "slice-000.jsonl").read_text()
    assert run_campaign(plan, tmp_path, measure=stand_in, retry_failed=True).failed == 0


def test_other_settings_make_another_run(tmp_path: Path) -> None:
    plan = small_plan(2)
    longer = replace(plan, settings=MeasureSettings(window_s=9.0, timeout_s=20.0))
    run_campaign(plan, tmp_path, measure=stand_in)
    assert status(longer, [tmp_path]).done == 0
    run_campaign(longer, tmp_path, measure=stand_in)
    assert (status(plan, [tmp_path]).done, status(longer, [tmp_path]).done) == (2, 2)
    # how long to wait for a member that died changes no figure
    assert status(replace(longer, settings=MeasureSettings(window_s=9.0)), [tmp_path]).done == 2


def test_no_run_starts_that_would_exceed_the_limit(tmp_path: Path) -> None:
    plan = small_plan(4, expected_s=100.0)
    assert run_campaign(plan, tmp_path, limit_s=50.0, measure=stand_in).done == 0
    # the pace of finished runs replaces the estimate: they took a millisecond and not 100 s
    run_campaign(plan, tmp_path / "one", limit_s=150.0, measure=stand_in)
    assert status(plan, [tmp_path / "one"]).done == 4


def test_earlier_folders_count_and_failed_runs_can_be_repeated(tmp_path: Path) -> None:
    plan = small_plan(4)

    def failing(request: RunRequest, settings: MeasureSettings) -> dict[str, Any]:
        record = stand_in(request, settings)
        record["members"][0]["outcome"] = "out-of-memory"
        return record

    first, second = tmp_path / "one", tmp_path / "two"
    assert run_campaign(plan, first, measure=failing).failed == 4
    assert run_campaign(plan, second, done_folders=[first], measure=stand_in).failed == 4
    final = run_campaign(plan, second, done_folders=[first], retry_failed=True, measure=stand_in)
    assert (final.done, final.failed) == (4, 0)


def test_disturbed_runs_are_counted_and_can_be_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = small_plan(3)
    busy = RunRequest.to_mapping(plan.runs[1].request)

    def disturbed(request: RunRequest, settings: MeasureSettings) -> dict[str, Any]:
        record = stand_in(request, settings)
        record["members"][0]["solo_verdict"] = "disturbed" if record["request"] == busy else "stable"
        return record

    first = run_campaign(plan, tmp_path, measure=disturbed)
    assert (first.done, first.failed, first.disturbed) == (3, 0, 1)
    console_status(plan.save(tmp_path / "plan.json"), tmp_path)
    printed = capsys.readouterr()
    assert "1 disturbed by other processes" in printed.out
    assert "--retry-disturbed" in printed.err
    asked: list[RunRequest] = []

    def quiet(request: RunRequest, settings: MeasureSettings) -> dict[str, Any]:
        asked.append(request)
        return stand_in(request, settings)

    assert run_campaign(plan, tmp_path, measure=quiet).disturbed == 1
    console_run(tmp_path / "plan.json", tmp_path, retry_disturbed=True, dry_run=True)
    assert "3 runs, 2 done, about 0 s left" in capsys.readouterr().err
    begun: list[int] = []
    final = run_campaign(
        plan,
        tmp_path,
        measure=quiet,
        retry_disturbed=True,
        on_start=lambda _, now: begun.append(now.done),
    )
    assert (final.disturbed, final.done, begun) == (0, 3, [2])
    assert asked == [plan.runs[1].request]


def test_repeats_under_a_limit_go_on_with_those_repeated_least(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, now_s = small_plan(3), 0.0
    asked: list[int | None] = []
    monkeypatch.setattr(runner.time, "monotonic", lambda: now_s)

    def always_disturbed(request: RunRequest, settings: MeasureSettings) -> dict[str, Any]:
        asked.append(request.workloads[0].batch_size)
        record = stand_in(request, settings) | {"wall_s": 60.0}
        record["members"][0]["solo_verdict"] = "disturbed"
        nonlocal now_s
        now_s += 60.0
        return record

    run_campaign(plan, tmp_path, measure=always_disturbed)
    left = []
    for _ in range(3):
        asked.clear()
        # At the pace so far only one of them fits.
        now = run_campaign(plan, tmp_path, measure=always_disturbed, retry_disturbed=True, limit_s=100.0)
        assert (now.done, now.disturbed) == (1, 3)
        left += asked
    assert left == [1, 2, 3]


def test_plan_round_trip(tmp_path: Path) -> None:
    plan = small_plan(3)
    assert CampaignPlan.load(plan.save(tmp_path / "plan.json")) == plan


@pytest.mark.parametrize("option", ["mode=inference", "compiler=compile", "memory_layout=channels-last"])
def test_obsolete_runs_of_earlier_plans_are_left_out(tmp_path: Path, option: str) -> None:
    pair = RunRequest("colocation", (Workload("resnet18-cifar"),) * 2, "cuda", "mig")
    path = CampaignPlan("test", "cuda", (PlannedRun(pair, 1.0),)).save(tmp_path / "plan.json")
    body = json.loads(path.read_text())
    body["runs"].insert(0, body["runs"][0] | {"workloads": ["resnet18-cifar", f"resnet18-cifar:{option}"]})
    path.write_text(json.dumps(body))
    with pytest.warns(UserWarning, match=f"1 of 2 runs were left out.*{option.partition('=')[0]}"):
        plan = CampaignPlan.load(path)
    assert [run.request for run in plan.runs] == [pair]
    body["runs"][0]["workloads"] = []
    path.write_text(json.dumps(body))
    with pytest.raises(InputError, match="0 jobs"):
        CampaignPlan.load(path)


def test_invalid_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"format": "cotenant-plan", "version": 1, "name": "x"}')
    with pytest.raises(InputError, match="damaged"):
        CampaignPlan.load(path)
    path.write_text("[]")
    with pytest.raises(InputError, match="not a campaign plan"):
        CampaignPlan.load(path)
    run = small_plan(1).runs[0]
    with pytest.raises(InputError, match="twice"):
        CampaignPlan("x", "cpu", (run, run))
    with pytest.raises(InputError, match="another device"):
        CampaignPlan("x", "cuda", (run,))
    with pytest.raises(InputError, match="unknown device"):
        CampaignPlan("x", "tpu", ())


@pytest.mark.parametrize("expected_s", [-1.0, float("nan"), float("inf")])
def test_expected_duration_of_a_run(expected_s: float) -> None:
    with pytest.raises(InputError, match="expected_s"):
        PlannedRun(small_plan(1).runs[0].request, expected_s)


def test_a_missing_core_ends_a_campaign_before_its_first_record(tmp_path: Path) -> None:
    plan = small_plan(1)
    for core in (-1, "0"):
        with pytest.raises(InputError, match="core is out of range"):
            MeasureSettings.from_mapping({"core": core})
    with pytest.raises(InputError, match="may not use"):
        run_campaign(replace(plan, settings=MeasureSettings(core=10_000)), tmp_path)
    assert status(plan, [tmp_path]).done == 0


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("9m", 540), ("1.5h", 5400)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "9 minutes", "-3m", "0", "m"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(InputError, match="duration"):
        parse_duration(text)


def test_whole_campaign_on_the_command_line(tmp_path: Path) -> None:
    """A real campaign of one run through `python -m profiling`: dry run, run, status, export."""
    from datasets.tables import read_table

    jobs = [Workload("tests.profiling.measure.jobs:plain", batch_size=b) for b in (32, 64)]
    settings = MeasureSettings(
        repeats=2, window_s=0.1, alone_window_s=0.05, min_steps=2, max_warmup_s=0.2, retries=0
    )
    runs = (PlannedRun(RunRequest("colocation", tuple(jobs)), 2.0, "pair"),)
    plan, folder, out = tmp_path / "plan.json", tmp_path / "slices", tmp_path / "out"
    CampaignPlan("try", "cpu", runs, settings).save(plan)
    runner = CliRunner()
    dry = runner.invoke(app, ["campaign", "run", str(plan), "-o", str(folder), "--dry-run"])
    assert dry.exit_code == 0
    assert not folder.exists()
    short = runner.invoke(app, ["campaign", "run", str(plan), "-o", str(folder), "--limit", "1s"])
    assert short.exit_code == 1
    assert "0 of 1 runs done" in short.stdout
    done = runner.invoke(app, ["campaign", "run", str(plan), "-o", str(folder), "--limit", "9m"])
    assert done.exit_code == 0, done.output
    shown = runner.invoke(app, ["campaign", "status", str(plan), "-o", str(folder), "--json"])
    assert '"left": 0' in shown.stdout
    assert export_campaign([folder], out, "try")["colocation"] == 2
    assert len(read_table(out, "colocation")) == 2
    assert len(read_table(out, "solo")) == 2
    card = (out / "CARD.md").read_text()
    assert "## Spread" in card
    assert "throughput ratio" in card


def test_an_unreadable_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["campaign", "status", str(tmp_path), "-o", str(tmp_path)])
    assert (
        capsys.readouterr().err
        == f"profiling: cannot read or write {tmp_path}: is a directory; choose another path.\n"
    )


def test_export_without_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no finished run"):
        export_campaign([tmp_path], tmp_path / "out", "x")


def test_the_card_names_the_machines_of_the_runs_only(tmp_path: Path) -> None:
    """Not one on which the campaign could not begin, as it lacks the GPU."""
    (run,) = small_plan(1).runs
    with SliceWriter(tmp_path) as writer:
        for gpu in ("none", "NVIDIA H200"):
            writer.append_environment({"fingerprint": gpu, "gpu": gpu})
        writer.append_run({**record_of(run.request, MeasureSettings()), "environment": "NVIDIA H200"})
    export_campaign([tmp_path], tmp_path / "out", "x")
    card = (tmp_path / "out" / "CARD.md").read_text()
    assert "fingerprint NVIDIA H200" in card
    assert "fingerprint none" not in card


def test_a_plan_carried_out_on_two_devices_is_two_campaigns(tmp_path: Path) -> None:
    """Its runs have the same ids on both, of which each would be exported once."""
    (run,) = small_plan(1).runs
    for device in ("v100", "a100"):
        with SliceWriter(tmp_path / device) as writer:
            writer.append_environment({"fingerprint": device, "gpu": device})
            record = record_of(run.request, MeasureSettings())
            writer.append_run({**record, "device": device, "environment": device})
    v100, a100, out = tmp_path / "v100", tmp_path / "a100", tmp_path / "out"
    with pytest.raises(InputError, match=r"1 run of these folders ran on several devices.*a100 in"):
        export_campaign([v100, a100], out, "both")
    export_campaign([v100, v100], out, "V")
    with pytest.warns(UserWarning, match="keeps its rows of other campaigns: V"):
        export_campaign([a100], out, "A 100")
    assert (out / "CARD.md").read_text().startswith("# V\n")
    assert (out / "CARD-A-100.md").read_text().startswith("# A 100\n")
    with (
        pytest.warns(UserWarning, match="keeps its rows"),
        pytest.warns(UserWarning, match="had 1 other run of campaign V"),
    ):
        export_campaign([a100], out, "V")
